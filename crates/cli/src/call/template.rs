//! A message with all its fields, as something to begin with.

use std::collections::BTreeSet;
use std::error::Error;

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, SerializeOptions, Value,
};

use super::contained::contained;

/// The most fields of a template: types that have several fields of one another make many of few.
const MOST: usize = 4096;
/// The most messages inside one another, for each costs stack.
const DEEPEST: usize = 16;

/// Prints the template of a message, which the method takes as it is.
pub(crate) fn describe(kind: &MessageDescriptor) -> Result<(), Box<dyn Error>> {
    let (text, remarks) = contained(|| described(kind))??;
    crate::say(&text)?;
    remarks.iter().for_each(|remark| crate::remark(remark));
    Ok(())
}

/// A template as JSON, and remarks on it.
fn described(kind: &MessageDescriptor) -> Result<(String, BTreeSet<String>), serde_json::Error> {
    let mut template = Template::default();
    let message = template.message(kind);
    let mut text = Vec::new();
    let mut json = serde_json::Serializer::pretty(&mut text);
    let options = SerializeOptions::new().skip_default_fields(false);
    message.serialize_with_options(&mut json, &options)?;
    text.push(b'\n');
    if template.cut {
        let limits = format!("more than {MOST} fields, or {DEEPEST} messages inside one another");
        template.remarks.insert(format!("some fields are left out: there are {limits}"));
    }
    Ok((String::from_utf8_lossy(&text).into_owned(), template.remarks))
}

/// A template in the making.
#[derive(Default)]
struct Template {
    /// The types of the messages that are being made, each inside the one before.
    outer: Vec<String>,
    /// How many fields have been looked at.
    fields: usize,
    /// Whether one was left out that there is no room for.
    cut: bool,
    /// Types whose remarks are made.
    told: BTreeSet<String>,
    remarks: BTreeSet<String>,
}

impl Template {
    /// A message whose fields all have values. Of a oneof the first field has one, and a remark names the
    /// others; a message inside one of its own type is left out.
    fn message(&mut self, kind: &MessageDescriptor) -> DynamicMessage {
        let mut message = DynamicMessage::new(kind.clone());
        match kind.full_name() {
            "google.protobuf.Value" => {
                message.set_field_by_name("null_value", Value::EnumNumber(0));
                return message;
            }
            name if name.starts_with("google.protobuf.") => return message,
            name => self.outer.push(name.to_owned()),
        }
        for field in kind.fields() {
            self.fields += 1;
            if self.fields > MOST {
                self.cut = true;
                break;
            }
            if let Some(oneof) = field.containing_oneof()
                && oneof.fields().next().is_some_and(|first| first != field)
            {
                continue;
            }
            if let Some(value) = self.value(&field) {
                message.set_field(&field, value);
            }
        }
        if self.told.insert(kind.full_name().to_owned()) {
            for oneof in kind.oneofs().filter(|oneof| oneof.fields().len() > 1) {
                let names: Vec<String> =
                    oneof.fields().map(|field| format!("`{}`", field.json_name())).collect();
                let remark = format!("{}: one of {}", oneof.full_name(), names.join(", "));
                self.remarks.insert(remark);
            }
        }
        self.outer.pop();
        message
    }

    fn value(&mut self, field: &FieldDescriptor) -> Option<Value> {
        let Kind::Message(kind) = field.kind() else {
            let one = field.kind().default_value();
            return Some(if field.is_list() { Value::List(vec![one]) } else { one });
        };
        if field.is_map() {
            let one = self.value(&kind.map_entry_value_field())?;
            let key = match kind.map_entry_key_field().kind().default_value() {
                Value::Bool(key) => MapKey::Bool(key),
                Value::I32(key) => MapKey::I32(key),
                Value::I64(key) => MapKey::I64(key),
                Value::U32(key) => MapKey::U32(key),
                Value::U64(key) => MapKey::U64(key),
                _ => MapKey::String("key".into()),
            };
            return Some(Value::Map([(key, one)].into()));
        }
        // An Any has no form without a type.
        if self.outer.iter().any(|name| name == kind.full_name())
            || kind.full_name() == "google.protobuf.Any"
        {
            return None;
        }
        if self.outer.len() == DEEPEST {
            self.cut = true;
            return None;
        }
        let one = Value::Message(self.message(&kind));
        Some(if field.is_list() { Value::List(vec![one]) } else { one })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use prost_reflect::DescriptorPool;

    use super::*;

    /// The template of the first of so many types, each of which has fields of the next one.
    fn chain(types: usize, fields: usize) -> (String, BTreeSet<String>) {
        let mut text = String::from("syntax = \"proto3\";\n");
        for number in 0..types {
            writeln!(text, "message T{number} {{").unwrap();
            for field in 1..=fields {
                writeln!(text, "T{} f{field} = {field};", number + 1).unwrap();
            }
            writeln!(text, "}}").unwrap();
        }
        writeln!(text, "message T{types} {{ string last = 1; }}").unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("t.proto"), text).unwrap();
        let files = protox::compile(["t.proto"], [dir.path()]).unwrap();
        let pool = DescriptorPool::from_file_descriptor_set(files).unwrap();
        described(&pool.get_message_by_name("T0").unwrap()).unwrap()
    }

    fn is_cut(remarks: &BTreeSet<String>) -> bool {
        remarks.iter().any(|remark| remark.contains("left out"))
    }

    #[test]
    fn chain_of_types_ends_at_the_depth_with_a_remark() {
        let (text, remarks) = chain(DEEPEST - 1, 1);
        assert!(text.contains("\"last\": \"\"") && !is_cut(&remarks), "{text}");
        let (text, remarks) = chain(3000, 1);
        assert_eq!(text.matches("f1").count(), DEEPEST - 1);
        assert!(is_cut(&remarks), "{remarks:?}");
    }

    #[test]
    fn types_with_many_fields_of_one_another_end_at_the_most_with_a_remark() {
        let (text, remarks) = chain(10, 8);
        assert!(text.len() < 1 << 20 && is_cut(&remarks), "{}, {remarks:?}", text.len());
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }
}
