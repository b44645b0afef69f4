//! The HTML report: one file, no scripts, nothing loaded from anywhere.

use std::fmt::Write;

use serde_json::Value;

use super::summary::{self, Group};
use super::{plot, table, terms};
use crate::case::Bench;
use crate::contender::{Contender, Kind};
use crate::driver::Run;
use crate::error::Result;
use crate::registry;
use crate::target::{Finding, Verdict};

const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #1c2024; --paper: #fff; --line: #d8dce0; --soft: #4c555e;
  --good: #13743a; --bad: #b3261e; --warn: #fdf1f0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --paper: #15181b; --line: #363c42;
  --soft: #a8b1ba; --good: #5fd38d; --bad: #ff8a80; --warn: #2b1c1b; } }
body { margin: 0 auto; padding: 1rem 1.5rem 4rem; max-width: 68rem; background: var(--paper);
  color: var(--ink); font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; } p, li { max-width: 56rem; }
.soft, dd { color: var(--soft); } summary { cursor: pointer; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.5rem; font-size: .9rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; white-space: nowrap;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
.findings td:last-child { white-space: normal; min-width: 14rem; }
.warnings { background: var(--warn); border-left: 4px solid var(--bad); padding: .2rem 1rem; }
.swatch { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
.swatch:first-child { margin-left: 0; }
.pass { color: var(--good); } .fail, .void { color: var(--bad); font-weight: 600; }
svg { display: block; width: 100%; max-width: 46rem; height: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr));
  gap: 1rem 2rem; }";

/// How to read the page.
const READING: &str = "\
<p>Each sample is a fresh pair of processes; its figure is the median over its calls, or their rate. In a
round each contender has one sample in each plot, in random order. Comparisons are ratios within a round,
so that a disturbance of the machine meets both sides. Every answer is checked.</p>
<ul>
<li><a href=\"#targets\">Targets</a> are what the project promises, and whether this run shows it.</li>
<li><a href=\"#plots\">Plots</a> compare all contenders, one plot for each size, mode and placement.</li>
<li><a href=\"#figures\">Figures</a> have the percentiles, CPU times and ratios behind the plots.</li>
<li><a href=\"#contenders\">Contenders</a> says who is measured, <a href=\"#terms\">Terms</a> what the words
mean, and <a href=\"#machine\">Machine</a> where it was.</li>
</ul>
";

/// How to read the plots.
const PLOTS: &str = "\
<p>A dot is a sample, the bar spans the middle half of the samples, and the mark is their median.
Contenders with fewer than five samples are dots alone: an impression, no distribution. All plots have
the contenders in the same order. The axis is logarithmic, has its unit at its values, and says below
whether lower or higher is better.</p>
";

/// The whole page.
pub fn render(run: &Run) -> Result<String> {
    let title = match run.bench {
        Bench::Calls => "Partywall: calls",
        Bench::Words => "Partywall: words",
        Bench::Domain => "Partywall: domains",
        Bench::Transfer => "Partywall: transfer",
        Bench::Functions => "Partywall: functions",
        Bench::Sealed => "Partywall: sealed links",
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    paragraph(&mut out, "", terms::about(run.bench));
    let warnings = run.warnings();
    if !warnings.is_empty() {
        out.push_str("<div class=\"warnings\">\n");
        warnings.iter().for_each(|warning| paragraph(&mut out, "", warning));
        out.push_str("</div>\n");
    }
    paragraph(&mut out, "soft", &run.machine.line());
    table::tally(run).lines().for_each(|line| paragraph(&mut out, "soft", line));
    heading(&mut out, "How to read this page");
    out.push_str(READING);
    if !run.floors.is_empty() {
        heading(&mut out, "Floors");
        paragraph(&mut out, "", table::FLOORS);
        findings(&mut out, &run.floors);
    }
    heading(&mut out, "Targets");
    paragraph(&mut out, "", table::TARGETS);
    findings(&mut out, &run.targets);
    let groups = summary::groups(&run.rows);
    plots(&mut out, &groups)?;
    heading(&mut out, "Figures");
    groups.iter().for_each(|group| figures(&mut out, group));
    let measured = |known: &&Contender| run.rows.iter().any(|row| row.contender == known.name);
    let contenders = registry::of(run.bench).iter().filter(measured);
    definitions(&mut out, "Contenders", contenders.map(|known| (known.name, known.about)));
    definitions(&mut out, "Terms", terms::terms(run.bench));
    machine(&mut out, run)?;
    out.push_str("</body>\n</html>\n");
    Ok(out)
}

/// A heading, with its first word as the name that links use.
fn heading(out: &mut String, title: &str) {
    let name = title.split(' ').next().unwrap_or_default().to_lowercase();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "<h2 id=\"{name}\">{title}</h2>");
}

fn paragraph(out: &mut String, class: &str, text: &str) {
    let _ = writeln!(out, "<p{}>{}</p>", attribute(class), escape(text));
}

fn plots(out: &mut String, groups: &[Group]) -> Result<()> {
    heading(out, "Plots");
    out.push_str(PLOTS);
    out.push_str("<p>");
    for (kind, who) in [(Kind::Ours, "Partywall"), (Kind::Other, "others"), (Kind::Floor, "floors")]
    {
        let plotters::style::RGBColor(red, green, blue) = plot::colour(kind);
        let _ = write!(
            out,
            "<span class=\"swatch\" style=\"background: rgb({red}, {green}, {blue})\"></span>{who}"
        );
    }
    out.push_str("</p>\n<div class=\"plots\">\n");
    for group in groups {
        if let Some(svg) = plot::render(group)? {
            let _ = writeln!(out, "<div><h3>{}</h3>\n{svg}</div>", escape(&group.case.to_string()));
        }
    }
    out.push_str("</div>\n");
    Ok(())
}

fn definitions<'a>(
    out: &mut String,
    title: &str,
    terms: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    heading(out, title);
    out.push_str("<dl>\n");
    for (term, text) in terms {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(term), escape(text));
    }
    out.push_str("</dl>\n");
}

fn findings(out: &mut String, findings: &[Finding]) {
    out.push_str("<div class=\"wide\"><table class=\"findings\">\n");
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
        let mark = attribute(if index == 0 { class } else { "" });
        let _ = write!(out, "<{element}{mark}>{}</{element}>", escape(cell));
    }
    out.push_str("</tr>\n");
}

fn machine(out: &mut String, run: &Run) -> Result<()> {
    let facts = serde_json::to_value(&run.machine)?;
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let facts: Vec<_> = facts.as_object().into_iter().flatten().collect();
    let texts: Vec<_> = facts.iter().map(|(name, value)| (name.as_str(), text(value))).collect();
    definitions(out, "Machine", texts.iter().map(|(name, text)| (*name, text.as_str())));
    Ok(())
}

/// An element's class as it is written in its tag.
fn attribute(class: &str) -> String {
    if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") }
}

/// Text as it may stand between tags and in attributes.
fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
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
