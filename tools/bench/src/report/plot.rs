//! One plot per group, with a dot for every sample. From [`ENOUGH`] samples on, a bar goes from quartile
//! to quartile, with a mark at the median. The axis is logarithmic. Its title says what it shows and which
//! way is better.

use indicatif::HumanCount;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::summary::{Group, Line, metric};
use super::{tag, terms};
use crate::case::{Place, Wait};
use crate::contender::Kind;
use crate::error::{Fault, Result};
use crate::ratio::Metric;
use crate::stats::{ENOUGH, quantile};
use crate::units::{rate, small, time};

/// Drawn in this colour, which no theme has, and then replaced by the page's text colour.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_TEXT: &str = "#010203";

/// Whose work has which colour; all are readable on light and on dark ground.
pub fn colour(kind: Kind) -> RGBColor {
    match kind {
        Kind::Ours => RGBColor(214, 96, 20),
        Kind::Other => RGBColor(52, 120, 210),
        Kind::Floor => RGBColor(120, 130, 140),
    }
}

const WIDTH: u32 = 460;
const LINE: u32 = 24;
/// Below the lines: the ticks' values, and the axis title.
const FOOT: u32 = 52;
const MARGIN: u32 = 6;
const FRAME: u32 = FOOT + 4 * MARGIN;
const LABELS: u32 = 156;
/// The same where a label has a place.
const LONG_LABELS: u32 = 236;

/// An SVG element that takes the page's colours; none if nothing was measured.
pub fn render(group: &Group) -> Result<Option<String>> {
    // The axis counts upwards.
    let lines: Vec<&Line> =
        group.lines.iter().rev().filter(|line| !line.values.is_empty()).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let mut svg = String::new();
    draw(&mut svg, group, &lines)?;
    Ok(Some(adapt(&svg)))
}

fn draw(svg: &mut String, group: &Group, lines: &[&Line]) -> Result<()> {
    let height = FRAME + LINE * lines.len() as u32;
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    let (low, high) = range(lines);
    let usual = lines.iter().all(|line| line.place == Place::Host);
    let labels = if usual { LABELS } else { LONG_LABELS };
    let unit: fn(f64) -> String = match metric(&group.case) {
        Metric::P50 | Metric::P99 | Metric::P999 | Metric::RoundTripP99 | Metric::Cpu => time,
        Metric::PerSecond => rate,
        // The axis title has the unit, which five ticks have no room for.
        Metric::Pss | Metric::Kept | Metric::Harm => small,
        Metric::Memory => |bytes| format!("{:.1} MiB", bytes / f64::from(1 << 20)),
        Metric::OneWay => |cycles| HumanCount(cycles as u64).to_string(),
    };
    // Each line is at a whole number.
    let (foot, head) = (-0.5, lines.len() as f64 - 0.5);
    let mut chart = ChartBuilder::on(&root)
        .margin(MARGIN)
        .margin_right(18)
        .x_label_area_size(FOOT)
        .y_label_area_size(labels)
        .build_cartesian_2d((low..high).log_scale(), foot..head)
        .map_err(drawn)?;
    let text = ("sans-serif", 12).into_font().color(&INK);
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(INK.mix(0.5))
        // A logarithmic axis has a label of its own even so.
        .x_labels(0)
        .x_label_formatter(&|_| String::new())
        .y_labels(0)
        .draw()
        .map_err(drawn)?;
    let beside = text.pos(Pos::new(HPos::Right, VPos::Center));
    let below = text.pos(Pos::new(HPos::Center, VPos::Top));
    for value in ticks(low, high) {
        let line = PathElement::new([(value, foot), (value, head)], INK.mix(0.2));
        chart.draw_series([line]).map_err(drawn)?;
        let mark = EmptyElement::at((value, foot)) + Text::new(unit(value), (0, 6), below.clone());
        chart.draw_series([mark]).map_err(drawn)?;
    }
    for (index, line) in lines.iter().enumerate() {
        let colour = colour(line.kind);
        let at = |value: f64| (value, index as f64);
        let label = EmptyElement::at(at(low)) + Text::new(name(line), (-8, 0), beside.clone());
        chart.draw_series([label]).map_err(drawn)?;
        let mut sorted = line.values.clone();
        sorted.sort_by(f64::total_cmp);
        // A few samples have no distribution.
        let few = sorted.len() < ENOUGH;
        let (radius, shade) = if few { (3, 1.0) } else { (2, 0.6) };
        let dot = |value: &f64| Circle::new(at(*value), radius, colour.mix(shade).filled());
        chart.draw_series(sorted.iter().map(dot)).map_err(drawn)?;
        let quartiles = [0.25, 0.5, 0.75].map(|q| quantile(&sorted, q).map(at));
        if let ([Some(from), Some(median), Some(to)], false) = (quartiles, few) {
            let bar = PathElement::new([from, to], colour.mix(0.35).stroke_width(12));
            chart.draw_series([bar]).map_err(drawn)?;
            let tick = EmptyElement::at(median)
                + PathElement::new([(0, -8), (0, 8)], colour.stroke_width(3));
            chart.draw_series([tick]).map_err(drawn)?;
        }
    }
    let title = EmptyElement::at(((low * high).sqrt(), foot))
        + Text::new(terms::axis(&group.case), (0, 26), below);
    chart.draw_series([title]).map_err(drawn)?;
    root.present().map_err(drawn)?;
    Ok(())
}

fn drawn(error: impl std::fmt::Display) -> Fault {
    format!("the plot cannot be drawn: {error}").into()
}

/// A little more than the values span, and never nothing.
fn range(lines: &[&Line]) -> (f64, f64) {
    let values = || lines.iter().flat_map(|line| line.values.iter().copied());
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    (low / 1.3, high * 1.3)
}

/// At most five round values between `low` and `high`, as many as there are of one kind.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    const KINDS: [&[f64]; 4] =
        [&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let of_kind = |steps: &[f64]| -> Vec<f64> {
        let all = decades
            .clone()
            .flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
        all.filter(|value| (low..=high).contains(value)).collect()
    };
    let fitting = KINDS.into_iter().map(of_kind).find(|found| found.len() <= 5);
    fitting.unwrap_or_else(|| of_kind(&[1.0]).into_iter().step_by(2).collect())
}

fn name(line: &Line) -> String {
    let parts = [line.contender, line.place.text(), Wait::text(line.wait), tag(line.near)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Lets the page decide about size and colours.
fn adapt(svg: &str) -> String {
    let (head, rest) = svg.split_once('>').unwrap_or((svg, ""));
    let kept =
        head.split(' ').filter(|part| !part.starts_with("width=") && !part.starts_with("height="));
    let head = kept.collect::<Vec<_>>().join(" ");
    format!("{head} role=\"img\">{}", rest.replace(INK_TEXT, "currentColor"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Case, Mode, Placement};
    use crate::report::summary;
    use crate::row::{Figures, Row};

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(2_100.0, 4_800.0), [3000.0, 4000.0]);
        assert_eq!(ticks(90.0, 11_000.0), [100.0, 300.0, 1000.0, 3000.0, 10_000.0]);
        assert_eq!(ticks(0.5, 2e9).len(), 5);
    }

    const CASE: Case = Case::call(Mode::Latency, Some(32), Placement::SameCore, Some(Wait::Block));

    /// The plot of samples in one case.
    fn plot(case: Case, samples: &[(&'static str, Figures)]) -> String {
        let row = |(contender, figures): &(&'static str, Figures)| Row {
            contender,
            case,
            near: None,
            rep: 0,
            figures: *figures,
        };
        let rows: Vec<Row> = samples.iter().map(row).collect();
        render(&summary::groups(&rows)[0]).expect("drawn").expect("not empty")
    }

    fn took(p50: f64) -> Figures {
        Figures { p50_ns: Some(p50), ..Figures::default() }
    }

    #[test]
    fn a_plot_takes_the_colours_and_the_width_of_the_page() {
        let svg = plot(CASE, &[("pipe", took(5000.0)), ("tonic-uds", took(40_000.0))]);
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        let head = &svg[..svg.find('>').expect("a tag")];
        assert!(!head.contains("width=") && head.contains("viewBox="), "{head}");
        assert!(svg.contains("currentColor") && !svg.contains(INK_TEXT));
        assert!(svg.contains("pipe block") && svg.contains("tonic-uds block"));
    }

    #[test]
    fn an_axis_says_what_it_shows_and_which_way_is_better() {
        let svg = plot(CASE, &[("pipe", took(5000.0))]);
        assert!(svg.contains("median time of a call (log scale), lower is better"));
        let rate = Figures { per_s: Some(5000.0), ..Figures::default() };
        let svg = plot(Case { mode: Some(Mode::Pipelined), ..CASE }, &[("pipe", rate)]);
        assert!(svg.contains("(log scale), higher is better"));
    }

    #[test]
    fn a_few_samples_are_dots_alone() {
        let bars = |count| {
            let samples = vec![("pipe", took(5000.0)); count];
            plot(CASE, &samples).matches("stroke-width=\"12\"").count()
        };
        assert_eq!((bars(1), bars(ENOUGH - 1), bars(ENOUGH)), (0, 0, 1));
    }

    #[test]
    fn a_plot_of_one_contender_names_it_beside_its_samples() {
        let svg = plot(CASE, &[("pipe", took(5000.0))]);
        let sample: u32 = svg
            .split_once("cy=\"")
            .and_then(|(_, rest)| rest.split_once('"'))
            .and_then(|(y, _)| y.parse().ok())
            .expect("a dot");
        let (top, foot) = (MARGIN, FRAME + LINE - MARGIN - FOOT);
        assert_eq!(sample, u32::midpoint(top, foot), "{svg}");
    }
}
