//! A message with all its fields, as something to begin with.

use std::error::Error;

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, SerializeOptions, Value,
};

/// Prints the template of a message, which the method takes as it is.
pub(crate) fn describe(kind: &MessageDescriptor) -> Result<(), Box<dyn Error>> {
    let mut choices = Vec::new();
    let message = template(kind, &mut Vec::new(), &mut choices);
    let mut text = Vec::new();
    let mut json = serde_json::Serializer::pretty(&mut text);
    let options = SerializeOptions::new().skip_default_fields(false);
    message.serialize_with_options(&mut json, &options)?;
    text.push(b'\n');
    crate::say(&String::from_utf8(text)?)?;
    choices.iter().for_each(|choice| crate::remark(choice));
    Ok(())
}

/// A message whose fields all have values. Of a oneof the first field has one, and a remark names the
/// others; a message inside one of its own type is left out.
fn template(
    kind: &MessageDescriptor,
    outer: &mut Vec<String>,
    choices: &mut Vec<String>,
) -> DynamicMessage {
    let mut message = DynamicMessage::new(kind.clone());
    match kind.full_name() {
        "google.protobuf.Value" => {
            message.set_field_by_name("null_value", Value::EnumNumber(0));
            return message;
        }
        name if name.starts_with("google.protobuf.") => return message,
        name => outer.push(name.to_owned()),
    }
    for field in kind.fields() {
        if let Some(oneof) = field.containing_oneof()
            && oneof.fields().next().is_some_and(|first| first != field)
        {
            continue;
        }
        if let Some(value) = value(&field, outer, choices) {
            message.set_field(&field, value);
        }
    }
    for oneof in kind.oneofs().filter(|oneof| oneof.fields().len() > 1) {
        let names: Vec<String> = oneof.fields().map(|f| format!("`{}`", f.json_name())).collect();
        let choice = format!("{}: one of {}", oneof.full_name(), names.join(", "));
        if !choices.contains(&choice) {
            choices.push(choice);
        }
    }
    outer.pop();
    message
}

fn value(
    field: &FieldDescriptor,
    outer: &mut Vec<String>,
    choices: &mut Vec<String>,
) -> Option<Value> {
    let Kind::Message(kind) = field.kind() else {
        let one = field.kind().default_value();
        return Some(if field.is_list() { Value::List(vec![one]) } else { one });
    };
    if field.is_map() {
        let one = value(&kind.map_entry_value_field(), outer, choices)?;
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
    if outer.iter().any(|name| name == kind.full_name())
        || kind.full_name() == "google.protobuf.Any"
    {
        return None;
    }
    let one = Value::Message(template(&kind, outer, choices));
    Some(if field.is_list() { Value::List(vec![one]) } else { one })
}
