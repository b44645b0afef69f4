//! A YAML document as a tree that keeps the line of every key and value.

use std::{borrow::Cow, collections::HashMap, path::Path, sync::Arc};

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::error::{ComposeError, Place};

/// How deep lists and mappings may nest, aliases included.
const MAX_DEPTH: usize = 64;
/// How many values aliases may copy in all.
const MAX_COPIED: usize = 100_000;

/// A value of the document.
#[derive(Debug, Clone)]
pub struct Node {
    /// The line it starts on, from 1.
    pub line: usize,
    /// What it is.
    pub value: Value,
}

/// What a value is.
#[derive(Debug, Clone)]
pub enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// A scalar, as written: `1.10` and `yes` stay text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A mapping in the order of the file, merge keys (`<<`) resolved.
    Map(Vec<Entry>),
}

/// A key of a mapping and its value.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The line of the key.
    pub line: usize,
    /// The value.
    pub value: Node,
}

impl Node {
    /// Counts this value and all below it into `count`; gives the depth below and including it.
    fn measure(&self, count: &mut usize) -> usize {
        *count += 1;
        let deepest = match &self.value {
            Value::Null | Value::Text(_) => return 0,
            Value::List(items) => items.iter().map(|item| item.measure(count)).max(),
            Value::Map(entries) => entries.iter().map(|entry| entry.value.measure(count)).max(),
        };
        deepest.unwrap_or(0) + 1
    }
}

/// Parses a file's text. An empty file gives `None`.
pub fn parse(file: &Arc<Path>, text: &str) -> Result<Option<Node>, ComposeError> {
    let mut builder = Builder {
        file,
        open: Vec::new(),
        anchors: HashMap::new(),
        copied: 0,
        documents: 0,
        root: None,
    };
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| ComposeError::Syntax {
            file: file.clone(),
            line: error.marker().line(),
            column: error.marker().col() + 1,
            detail: error.info().to_owned(),
        })?;
        builder.event(event, span)?;
    }
    Ok(builder.root)
}

/// A list or mapping whose end has not come yet.
struct Open {
    node: Node,
    anchor: usize,
    /// The key that waits for its value.
    key: Option<(String, usize)>,
    /// The keys so far and their lines.
    seen: HashMap<String, usize>,
    /// What `<<` asks to merge in.
    merge: Vec<Entry>,
}

struct Builder<'a> {
    file: &'a Arc<Path>,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    copied: usize,
    documents: usize,
    root: Option<Node>,
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), ComposeError> {
        let line = span.start.line();
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(self.form(line, "a second YAML document; keep one in the file"));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.add(Node { line, value: scalar(text, style, tag.as_deref()) }, anchor)
            }
            Event::SequenceStart(anchor, _) => self.begin(line, Value::List(Vec::new()), anchor),
            Event::MappingStart(anchor, _) => self.begin(line, Value::Map(Vec::new()), anchor),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(line, anchor),
        }
    }

    fn begin(&mut self, line: usize, value: Value, anchor: usize) -> Result<(), ComposeError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(self.form(line, "lists and mappings nest deeper than 64; flatten them"));
        }
        self.open.push(Open {
            node: Node { line, value },
            anchor,
            key: None,
            seen: HashMap::new(),
            merge: Vec::new(),
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), ComposeError> {
        let Some(mut open) = self.open.pop() else { return Ok(()) };
        if let Value::Map(entries) = &mut open.node.value {
            for entry in open.merge {
                if !open.seen.contains_key(&entry.key) {
                    open.seen.insert(entry.key.clone(), entry.line);
                    entries.push(entry);
                }
            }
        }
        self.add(open.node, open.anchor)
    }

    fn alias(&mut self, line: usize, anchor: usize) -> Result<(), ComposeError> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(self.form(line, "an alias stands inside the value it stands for"));
        };
        let depth = node.measure(&mut self.copied);
        if self.open.len() + depth > MAX_DEPTH {
            return Err(self.form(line, "lists and mappings nest deeper than 64; flatten them"));
        }
        if self.copied > MAX_COPIED {
            return Err(self.form(line, "aliases copy more than 100000 values; use fewer"));
        }
        let node = Node { line, value: node.value.clone() };
        self.add(node, 0)
    }

    /// Puts a complete value where it belongs: a list's item, a mapping's key or value, the root.
    fn add(&mut self, mut node: Node, anchor: usize) -> Result<(), ComposeError> {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        let entries = match &mut open.node.value {
            Value::List(items) => {
                items.push(node);
                return Ok(());
            }
            Value::Map(entries) => entries,
            Value::Null | Value::Text(_) => return Ok(()),
        };
        let Some((key, line)) = open.key.take() else {
            let Value::Text(key) = node.value else {
                return Err(self.form(node.line, "a key of a mapping must be text"));
            };
            open.key = Some((key.clone(), node.line));
            let first = open.seen.insert(key, node.line);
            return first.map_or(Ok(()), |first| {
                Err(ComposeError::Duplicate { place: self.here(node.line), first })
            });
        };
        if let Value::Null = node.value {
            // An empty value has no place of its own.
            node.line = line;
        }
        if key != "<<" {
            entries.push(Entry { key, line, value: node });
            return Ok(());
        }
        let maps = match node.value {
            Value::List(maps) => maps,
            value => vec![Node { line, value }],
        };
        for map in maps {
            let Value::Map(entries) = map.value else {
                open.key = Some((key, line));
                return Err(ComposeError::Type {
                    place: self.here(line),
                    expected: "a mapping or a list of mappings",
                    found: map.value.kind(),
                });
            };
            open.merge.extend(entries);
        }
        Ok(())
    }

    fn form(&self, line: usize, detail: &'static str) -> ComposeError {
        ComposeError::Form { file: self.file.clone(), line, detail }
    }

    /// The place of the key that is being read.
    fn here(&self, line: usize) -> Place {
        let mut path = String::new();
        for open in &self.open {
            match (&open.node.value, &open.key) {
                (Value::List(items), _) => path.push_str(&format!("[{}]", items.len())),
                (_, Some((key, _))) if path.is_empty() => path.push_str(key),
                (_, Some((key, _))) => path.extend([".", key]),
                (_, None) => {}
            }
        }
        Place { file: self.file.clone(), line, key: path }
    }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
    let is_null = matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
    if is_null && style == ScalarStyle::Plain && !is_text {
        Value::Null
    } else {
        Value::Text(text.into_owned())
    }
}

impl Value {
    /// What the value is, in words for an error.
    pub fn kind(&self) -> String {
        match self {
            Value::Null => "nothing".into(),
            Value::Text(text) if text.chars().count() > 40 => {
                format!("the text `{}...`", text.chars().take(40).collect::<String>())
            }
            Value::Text(text) => format!("the text `{text}`"),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a mapping".into(),
        }
    }
}

#[cfg(test)]
mod tests;
