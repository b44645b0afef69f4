//! Variables in values: `$NAME`, `${NAME}` and the forms with a default, as Compose has them.

/// How the value of a variable is found.
pub type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// How deep defaults may hold further variables.
const MAX_DEPTH: usize = 16;

/// Replaces the variables in `text`. Gives the text and the names that were not set and had no
/// default, or what is malformed and how to write it.
pub fn expand(text: &str, vars: Vars<'_>) -> Result<(String, Vec<String>), String> {
    let mut expander = Expander { whole: text, rest: text, vars, unset: Vec::new() };
    let expanded = expander.run(0, true)?;
    Ok((expanded, expander.unset))
}

struct Expander<'a> {
    whole: &'a str,
    rest: &'a str,
    vars: Vars<'a>,
    unset: Vec<String>,
}

impl<'a> Expander<'a> {
    /// Expands up to the end of the text or, inside `${...}`, up to and with the closing brace.
    /// What is not `live` is only skipped over: a default that is not needed.
    fn run(&mut self, depth: usize, live: bool) -> Result<String, String> {
        if depth > MAX_DEPTH {
            return Err(self.malformed("defaults nest deeper than 16; set the variable instead"));
        }
        let stops: &[char] = if depth == 0 { &['$'] } else { &['$', '}'] };
        let mut out = String::new();
        while let Some(at) = self.rest.find(stops) {
            out.push_str(&self.rest[..at]);
            let closes = self.rest[at..].starts_with('}');
            self.rest = &self.rest[at + 1..];
            if closes {
                return Ok(out);
            }
            if self.take('$') {
                out.push('$');
            } else if self.take('{') {
                out.push_str(&self.braced(depth, live)?);
            } else {
                let name = self.name();
                if name.is_empty() {
                    return Err(self.malformed("`$` without a name; write `$$` for a dollar sign"));
                }
                out.push_str(&self.value(name, live));
            }
        }
        if depth > 0 {
            return Err(self.malformed("`${` without its `}`; add it, or write `$${` for the text"));
        }
        out.push_str(self.rest);
        self.rest = "";
        Ok(out)
    }

    /// Expands the rest of a reference whose `${` is read.
    fn braced(&mut self, depth: usize, live: bool) -> Result<String, String> {
        let name = self.name();
        if name.is_empty() {
            return Err(self.malformed(
                "`${` without a name; a name has letters, digits and `_` and starts with no digit",
            ));
        }
        if self.take('}') {
            return Ok(self.value(name, live));
        }
        let no_empty = self.take(':');
        let mut chars = self.rest.chars();
        let operator = chars.next();
        self.rest = chars.as_str();
        let value = (self.vars)(name).filter(|value| !(no_empty && value.is_empty()));
        match operator {
            Some('-') => {
                let default = self.run(depth + 1, live && value.is_none())?;
                Ok(value.unwrap_or(default))
            }
            Some('+') => {
                let replacement = self.run(depth + 1, live && value.is_some())?;
                Ok(value.map_or_else(String::new, |_| replacement))
            }
            Some('?') => {
                let message = self.run(depth + 1, live && value.is_none())?;
                match value {
                    None if live && message.is_empty() => {
                        Err(format!("variable `{name}` must be set"))
                    }
                    None if live => Err(format!("variable `{name}` must be set: {message}")),
                    value => Ok(value.unwrap_or_default()),
                }
            }
            _ => Err(self.malformed(&format!(
                "after `${{{name}` belongs `}}`, or `:-` and a default, `:?` and a message, or \
                 `:+` \
                 and a replacement"
            ))),
        }
    }

    fn value(&mut self, name: &str, live: bool) -> String {
        let value = (self.vars)(name);
        if live && value.is_none() && !self.unset.iter().any(|unset| unset == name) {
            self.unset.push(name.to_owned());
        }
        value.unwrap_or_default()
    }

    fn name(&mut self) -> &'a str {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = match self.rest.find(|c| !is_name(c)) {
            _ if self.rest.starts_with(|c: char| c.is_ascii_digit()) => 0,
            end => end.unwrap_or(self.rest.len()),
        };
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        name
    }

    fn take(&mut self, wanted: char) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn malformed(&self, what: &str) -> String {
        format!("malformed variable in `{}`: {what}", self.whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(name: &str) -> Option<String> {
        match name {
            "HOME" => Some("/srv/u".into()),
            "EMPTY" => Some(String::new()),
            "_a1" => Some("x".into()),
            _ => None,
        }
    }

    fn ok(text: &str) -> String {
        let (expanded, unset) = expand(text, &vars).unwrap();
        assert_eq!(unset, Vec::<String>::new(), "{text}");
        expanded
    }

    fn error(text: &str) -> String {
        expand(text, &vars).unwrap_err()
    }

    #[test]
    fn plain_text_and_escapes_stay() {
        assert_eq!(ok(""), "");
        assert_eq!(ok("a } b {c}"), "a } b {c}");
        assert_eq!(ok("cost $$5, $${HOME}, $$$$"), "cost $5, ${HOME}, $$");
        assert_eq!(ok("é$HOME€"), "é/srv/u€");
    }

    #[test]
    fn references_are_replaced() {
        assert_eq!(ok("$HOME/x"), "/srv/u/x");
        assert_eq!(ok("${HOME}x$_a1."), "/srv/uxx.");
        assert_eq!(ok("[${EMPTY}]"), "[]");
    }

    #[test]
    fn defaults_replacements_and_requirements() {
        assert_eq!(ok("${NO:-d}|${NO-d}|${EMPTY:-d}|${EMPTY-d}|${HOME:-d}"), "d|d|d||/srv/u");
        assert_eq!(ok("${NO:+r}|${EMPTY:+r}|${EMPTY+r}|${HOME:+r}"), "||r|r");
        assert_eq!(ok("${HOME:?needed}|${EMPTY?needed}"), "/srv/u|");
        assert_eq!(ok("${NO:-}"), "");
    }

    #[test]
    fn defaults_hold_variables() {
        assert_eq!(ok("${NO:-${HOME}/run}"), "/srv/u/run");
        assert_eq!(ok("${NO:-${NEITHER:-$$x}}y"), "$xy");
        // A default that is not needed is neither looked up nor required.
        assert_eq!(ok("${HOME:-$NO${NO}${NO:?needed}}"), "/srv/u");
    }

    #[test]
    fn unset_names_are_given_once() {
        let (text, unset) = expand("$A${B}$A", &vars).unwrap();
        assert_eq!(text, "");
        assert_eq!(unset, ["A", "B"]);
    }

    #[test]
    fn malformed_references() {
        for text in ["$", "a$ b", "$-", "$1", "100$"] {
            assert!(error(text).ends_with("write `$$` for a dollar sign"), "{}", error(text));
            assert!(error(text).contains(&format!("`{text}`")));
        }
        for text in ["${", "${}", "${1A}", "${-x}"] {
            assert!(error(text).contains("without a name"), "{}", error(text));
        }
        for text in ["${A:-x", "${A:-${B}", "${HOME:+"] {
            assert!(error(text).contains("without its `}`"), "{}", error(text));
        }
        for text in ["${A", "${A:", "${A x}", "${A:=x}", "${A.b}"] {
            assert!(error(text).contains("after `${A` belongs"), "{}", error(text));
        }
        assert!(error(&"${A:-".repeat(40)).contains("nest deeper"));
    }

    #[test]
    fn required_variables() {
        assert_eq!(error("${NO:?}"), "variable `NO` must be set");
        assert_eq!(error("${NO?set it to a path}"), "variable `NO` must be set: set it to a path");
        assert_eq!(error("${EMPTY:?why}"), "variable `EMPTY` must be set: why");
    }
}
