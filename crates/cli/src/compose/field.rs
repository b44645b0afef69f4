//! Reading typed values from the tree, with errors that name the place.

use std::{path::Path, sync::Arc};

use super::{
    error::{ComposeError, Place},
    interpolate::{self, Vars},
    tree::{Node, Value},
};

/// What reading one file needs throughout.
pub struct Context<'a> {
    /// The file.
    pub file: Arc<Path>,
    /// The variables for `${...}`.
    pub vars: Vars<'a>,
    /// What the user should know though it is no error.
    pub notes: Vec<String>,
}

impl Context<'_> {
    /// Adds a note about a place.
    pub fn note(&mut self, place: &Place, text: &str) {
        let note = format!("{place}: {text}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub struct Field<'n> {
    /// The last part of the key.
    pub name: &'n str,
    /// The whole key and the line.
    pub place: Place,
    /// The value.
    pub node: &'n Node,
}

impl<'n> Field<'n> {
    /// The document itself, whose key is empty.
    pub fn root(file: Arc<Path>, node: &'n Node) -> Self {
        Self { name: "", place: Place { file, line: node.line, key: String::new() }, node }
    }

    /// An error that says what belongs here.
    pub fn wrong(&self, expected: &'static str) -> ComposeError {
        ComposeError::Type { place: self.place.clone(), expected, found: self.node.value.kind() }
    }

    /// An error about the value.
    pub fn bad(&self, detail: impl Into<String>) -> ComposeError {
        ComposeError::Value { place: self.place.clone(), detail: detail.into() }
    }

    /// The entries of a mapping; none for an empty value.
    pub fn entries(&self) -> Result<Vec<Field<'n>>, ComposeError> {
        let entries = match &self.node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null => &[],
            _ => return Err(self.wrong("a mapping")),
        };
        let field = |entry: &'n super::tree::Entry| Field {
            name: &entry.key,
            place: Place {
                file: self.place.file.clone(),
                line: entry.line,
                key: match self.place.key.as_str() {
                    "" => entry.key.clone(),
                    above => format!("{above}.{}", entry.key),
                },
            },
            node: &entry.value,
        };
        Ok(entries.iter().map(field).collect())
    }

    /// The items of a list; none for an empty value.
    pub fn items(&self, expected: &'static str) -> Result<Vec<Field<'n>>, ComposeError> {
        let items = match &self.node.value {
            Value::List(items) => items.as_slice(),
            Value::Null => &[],
            _ => return Err(self.wrong(expected)),
        };
        let field = |(index, node): (usize, &'n Node)| Field {
            name: self.name,
            place: Place {
                file: self.place.file.clone(),
                line: node.line,
                key: format!("{}[{index}]", self.place.key),
            },
            node,
        };
        Ok(items.iter().enumerate().map(field).collect())
    }

    /// The entry `key` of a mapping.
    pub fn get(&self, key: &str) -> Result<Option<Field<'n>>, ComposeError> {
        Ok(self.entries()?.into_iter().find(|entry| entry.name == key))
    }

    /// The text as written.
    pub fn raw_text(&self, expected: &'static str) -> Result<&'n str, ComposeError> {
        match &self.node.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong(expected)),
        }
    }

    /// The text with its variables replaced.
    pub fn text(
        &self,
        expected: &'static str,
        cx: &mut Context<'_>,
    ) -> Result<String, ComposeError> {
        let written = self.raw_text(expected)?;
        let (text, unset) = interpolate::expand(written, cx.vars)
            .map_err(|detail| ComposeError::Variable { place: self.place.clone(), detail })?;
        for name in unset {
            cx.note(
                &self.place,
                &format!("variable `{name}` is not set; an empty text replaces it"),
            );
        }
        if text.contains('\0') {
            return Err(self.bad("a NUL character cannot be passed to a process; remove it"));
        }
        Ok(text)
    }
}
