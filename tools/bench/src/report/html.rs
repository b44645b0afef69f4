//! The HTML report: one file, no scripts, nothing loaded from anywhere.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::summary::{self, Group};
use super::{plot, table, terms};
use crate::case::Bench;
use crate::driver::Run;
use crate::error::Result;
use crate::stats::ENOUGH;
use crate::target::{Finding, Verdict};

const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #1c2024; --paper: #fff; --line: #d8dce0; --soft: #5c6670;
  --good: #13743a; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --paper: #15181b; --line: #363c42;
  --soft: #9aa4ae; --good: #5fd38d; --bad: #ff8a80; } }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p, dd, summary { color: var(--soft); } dl { display: grid; grid-template-columns: auto 1fr;
  gap: .1rem 1rem; font-size: .85rem; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; font-variant-numeric: tabular-nums; }
td:last-child { white-space: normal; min-width: 14rem; }
.warning { color: var(--bad); font-weight: 600; } .swatch { display: inline-block; width: .8em;
  height: .8em; margin: 0 .3em 0 1em; }
.pass { color: var(--good); } .fail, .void { color: var(--bad); font-weight: 600; }
svg { display: block; width: 100%; max-width: 46rem; height: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1rem 2rem; }";

/// The whole page.
///
/// # Errors
/// If a plot cannot be drawn.
pub fn render(run: &Run) -> Result<String> {
    let title = match run.bench {
        Bench::Calls => "Partywall: calls",
        Bench::Words => "Partywall: words",
        Bench::Domain => "Partywall: domains",
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    for warning in run.warnings() {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "<p class=\"warning\">{}</p>", escape(&warning));
    }
    let _ = writeln!(out, "<p>{}</p>", escape(&run.machine.line()));
    for line in table::tally(run).lines() {
        let _ = writeln!(out, "<p>{}</p>", escape(line));
    }
    if !run.floors.is_empty() {
        let _ = writeln!(out, "<h2>Floors</h2>\n<p>{}.</p>", escape(table::FLOORS));
        findings(&mut out, &run.floors);
    }
    let _ = writeln!(out, "<h2>Targets</h2>\n<p>{}.</p>", escape(table::TARGETS));
    findings(&mut out, &run.targets);
    let groups = summary::groups(&run.rows);
    plots(&mut out, &groups)?;
    out.push_str("<h2>Figures</h2>\n");
    groups.iter().for_each(|group| figures(&mut out, group));
    words(&mut out, run);
    machine(&mut out, run)?;
    out.push_str("</body>\n</html>\n");
    Ok(out)
}

fn plots(out: &mut String, groups: &[Group]) -> Result<()> {
    out.push_str(
        "<h2>Plots</h2>\n<p>A dot is a sample, the bar spans the middle half of the samples, the \
         mark is their median. The best is on top; the scales are logarithmic.</p>\n<p>",
    );
    for (colour, who) in plot::LEGEND {
        let plotters::style::RGBColor(red, green, blue) = colour;
        let _ = write!(
            out,
            "<span class=\"swatch\" style=\"background: rgb({red}, {green}, {blue})\"></span>{who}"
        );
    }
    out.push_str("</p>\n<div class=\"plots\">\n");
    for group in groups {
        if let Some(svg) = plot::render(group)? {
            let title = escape(&group.case.to_string());
            let few = group.lines.iter().any(|line| line.n < ENOUGH);
            let note =
                if few { "<p>Fewer than five samples of some: an impression.</p>" } else { "" };
            let _ = writeln!(out, "<div><h2>{title}</h2>\n{svg}{note}</div>");
        }
    }
    out.push_str("</div>\n");
    Ok(())
}

/// What the words of the page mean, the contenders that were measured among them.
fn words(out: &mut String, run: &Run) {
    let names: BTreeSet<&str> = run.rows.iter().map(|row| row.contender.as_str()).collect();
    let contenders = names.into_iter().map(|name| (name, terms::contender(name)));
    for (title, terms) in [
        ("Contenders", contenders.collect::<Vec<_>>()),
        ("Terms", terms::terms(run.bench).collect()),
    ] {
        let _ = writeln!(out, "<h2>{title}</h2>\n<dl>");
        for (term, text) in terms {
            let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(term), escape(text));
        }
        out.push_str("</dl>\n");
    }
}

fn findings(out: &mut String, findings: &[Finding]) {
    out.push_str("<div class=\"wide\"><table>\n");
    let rows = table::findings(findings);
    row(out, "th", "", &rows[0]);
    for (finding, cells) in findings.iter().zip(&rows[1..]) {
        let class = match finding.verdict {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::Void => "void",
            Verdict::Undecided | Verdict::Stated | Verdict::TooFew | Verdict::NotRun => "",
        };
        row(out, "td", class, cells);
    }
    out.push_str("</table></div>\n");
}

fn figures(out: &mut String, group: &Group) {
    let _ = write!(
        out,
        "<details><summary>{}</summary>\n<div class=\"wide\"><table>\n",
        escape(&group.case.to_string())
    );
    row(out, "th", "", &table::head(&group.case));
    for line in &group.lines {
        row(out, "td", "", &table::cells(&group.case, line));
    }
    out.push_str("</table></div></details>\n");
}

/// A table row; `class` marks its first cell.
fn row(out: &mut String, element: &str, class: &str, cells: &[String]) {
    out.push_str("<tr>");
    for (index, cell) in cells.iter().enumerate() {
        let mark = if index == 0 && !class.is_empty() {
            format!(" class=\"{class}\"")
        } else {
            String::new()
        };
        let _ = write!(out, "<{element}{mark}>{}</{element}>", escape(cell));
    }
    out.push_str("</tr>\n");
}

fn machine(out: &mut String, run: &Run) -> Result<()> {
    out.push_str("<h2>Machine</h2>\n<dl>\n");
    if let serde_json::Value::Object(facts) = serde_json::to_value(&run.machine)? {
        for (name, value) in facts {
            let text = match value {
                serde_json::Value::String(text) => text,
                other => other.to_string(),
            };
            let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(&name), escape(&text));
        }
    }
    out.push_str("</dl>\n");
    Ok(())
}

/// Text as it may stand between tags and in attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_facts_stays_text() {
        assert_eq!(escape("<b a=\"1\">&'"), "&lt;b a=&quot;1&quot;&gt;&amp;&#39;");
        let mut out = String::new();
        row(&mut out, "td", "fail", &["<x>".into(), "y".into()]);
        assert_eq!(out, "<tr><td class=\"fail\">&lt;x&gt;</td><td>y</td></tr>\n");
    }
}
