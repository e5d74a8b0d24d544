//! The distributions as a picture, like figures 14 and 15 of the paper.

use super::{Point, Survey};
use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 20.0;

fn place(ratio: f64, share: f64) -> (f64, f64) {
    (LEFT + ratio * WIDTH, TOP + (1.0 - share) * HEIGHT)
}

/// A distribution as a line of steps.
fn line(points: &[Point]) -> String {
    let (mut line, mut share) = (String::new(), 0.0);
    for point in points {
        for (x, y) in [place(point.ratio, share), place(point.ratio, point.share)] {
            let _ = write!(line, "{x:.1},{y:.1} ");
        }
        share = point.share;
    }
    let (x, y) = place(1.0, share);
    let _ = write!(line, "{x:.1},{y:.1}");
    line
}

/// The survey's distributions in SVG.
pub fn svg(survey: &Survey) -> String {
    let (width, height) = (LEFT + WIDTH + 20.0, TOP + HEIGHT + 60.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    // Writing to a text does not fail.
    for tenth in 0..=10 {
        let at = f64::from(tenth) / 10.0;
        let ((x, bottom), (left, y)) = (place(at, 0.0), place(0.0, at));
        let percent = tenth * 10;
        let (right, _) = place(1.0, at);
        let _ = writeln!(svg, "<path d=\"M{x} {TOP}V{bottom}M{left} {y}H{right}\" stroke=\"#ddd\"/>");
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{percent} %</text>", bottom + 18.0);
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{percent} %</text>", left - 6.0, y + 4.0);
    }
    let (middle, bottom) = place(0.5, 0.0);
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">transitions by request; the share of {} URLs that have no \
         more</text>",
        bottom + 42.0,
        survey.counted
    );
    let lines = [
        ("all", "black", &survey.all),
        ("first party", "#0a6", &survey.first_party),
        ("third party", "#a06", &survey.third_party),
    ];
    for (number, (name, colour, points)) in lines.into_iter().enumerate() {
        if points.is_empty() {
            continue;
        }
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            line(points)
        );
        let y = TOP + HEIGHT - 60.0 + 18.0 * number as f64;
        let x = LEFT + WIDTH - 100.0;
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{name}</text>");
    }
    svg.push_str("</svg>\n");
    svg
}
