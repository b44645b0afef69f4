//! What a file that a server tells has to be, before types are made of it.

use std::borrow::Cow;

use prost_reflect::prost_types::field_descriptor_proto::Type;
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
};

use crate::terminal::in_line;

/// The longest name of a thing, and of a field in JSON, in bytes.
const LONGEST: usize = 256;

/// Types that a key of a map may have.
const KEYS: [Type; 12] = [
    Type::Int32,
    Type::Int64,
    Type::Uint32,
    Type::Uint64,
    Type::Sint32,
    Type::Sint64,
    Type::Fixed32,
    Type::Fixed64,
    Type::Sfixed32,
    Type::Sfixed64,
    Type::Bool,
    Type::String,
];

/// Whether names are names, and entries of maps have a key and a value.
pub(super) fn check(file: &FileDescriptorProto) -> Result<(), String> {
    if !file.package().is_empty() {
        full_name(file.package())?;
    }
    file.message_type.iter().try_for_each(message)?;
    file.enum_type.iter().try_for_each(enumeration)?;
    file.extension.iter().try_for_each(field)?;
    for service in &file.service {
        identifier(service.name())?;
        service.method.iter().try_for_each(|method| identifier(method.name()))?;
    }
    Ok(())
}

/// Whether it is identifiers with dots between them.
pub(super) fn full_name(name: &str) -> Result<(), String> {
    name.split('.').try_for_each(identifier)
}

fn identifier(name: &str) -> Result<(), String> {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    if name.starts_with(letter)
        && name.chars().all(|c| letter(c) || c.is_ascii_digit())
        && name.len() <= LONGEST
    {
        return Ok(());
    }
    Err(format!("`{}` is no name of at most {LONGEST} letters, digits and `_`", start(name)))
}

/// As much of a text as a message has room for.
fn start(text: &str) -> Cow<'_, str> {
    in_line(&text[..text.floor_char_boundary(LONGEST)])
}

fn message(message: &DescriptorProto) -> Result<(), String> {
    identifier(message.name())?;
    message.field.iter().chain(&message.extension).try_for_each(field)?;
    message.oneof_decl.iter().try_for_each(|oneof| identifier(oneof.name()))?;
    message.enum_type.iter().try_for_each(enumeration)?;
    if message.options.as_ref().is_some_and(|options| options.map_entry()) && !is_entry(message) {
        return Err(format!("`{}` is no entry of a map, with key and value", message.name()));
    }
    message.nested_type.iter().try_for_each(self::message)
}

fn is_entry(message: &DescriptorProto) -> bool {
    let [key, value] = &message.field[..] else { return false };
    (key.number(), value.number()) == (1, 2) && key.r#type.is_some() && KEYS.contains(&key.r#type())
}

fn enumeration(kind: &EnumDescriptorProto) -> Result<(), String> {
    identifier(kind.name())?;
    kind.value.iter().try_for_each(|value| identifier(value.name()))
}

fn field(field: &FieldDescriptorProto) -> Result<(), String> {
    identifier(field.name())?;
    match field.json_name().len() <= LONGEST {
        true => Ok(()),
        false => Err(format!("`{}` is too long a name in JSON", start(field.json_name()))),
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::prost_types::MessageOptions;

    use super::*;

    fn named(name: &str) -> FileDescriptorProto {
        let message = DescriptorProto { name: Some(name.into()), ..Default::default() };
        FileDescriptorProto { message_type: vec![message], ..Default::default() }
    }

    #[test]
    fn names_that_are_no_identifiers_are_refused() {
        for name in ["A", "_a1", &"x".repeat(256)] {
            assert_eq!(check(&named(name)), Ok(()));
        }
        for name in ["", "1a", "a.b", "a-b", "\u{e4}", "a\x1b[2J", &"x".repeat(257)] {
            let refused = check(&named(name)).unwrap_err();
            assert!(!refused.contains('\x1b') && refused.contains("is no name"), "{refused}");
        }
    }

    #[test]
    fn map_entry_without_a_value_or_with_a_key_of_no_order_is_refused() {
        let field = |number, kind: Type| FieldDescriptorProto {
            name: Some(format!("f{number}")),
            number: Some(number),
            r#type: Some(kind.into()),
            ..Default::default()
        };
        let entry = |fields| {
            let mut file = named("Entry");
            file.message_type[0].options =
                Some(MessageOptions { map_entry: Some(true), ..Default::default() });
            file.message_type[0].field = fields;
            check(&file)
        };
        let value = || field(2, Type::Double);
        assert_eq!(entry(vec![field(1, Type::String), value()]), Ok(()));
        assert!(entry(vec![field(1, Type::String)]).unwrap_err().contains("no entry of a map"));
        assert!(entry(vec![field(1, Type::Double), value()]).is_err());
        assert!(entry(vec![field(3, Type::String), value()]).is_err());
    }
}
