//! The distributions as a picture, like figures 14 and 15 of the paper.

use super::{Point, Survey};
use crate::drawing::{self, Line};
use plotters::style::RGBColor;

/// A distribution as a line of steps, in percent.
fn steps(points: &[Point]) -> Vec<(f64, f64)> {
    let (mut steps, mut share) = (Vec::new(), 0.0);
    for point in points {
        steps.extend([(100.0 * point.ratio, 100.0 * share), (100.0 * point.ratio, 100.0 * point.share)]);
        share = point.share;
    }
    steps.push((100.0, 100.0 * share));
    steps
}

/// The survey's distributions in SVG.
pub fn svg(survey: &Survey) -> String {
    let lines = [
        ("all", RGBColor(0, 0, 0), &survey.all),
        ("first party", RGBColor(0, 150, 90), &survey.first_party),
        ("third party", RGBColor(170, 0, 100), &survey.third_party),
    ];
    let lines: Vec<Line<'_>> = lines
        .into_iter()
        .filter(|(_, _, points)| !points.is_empty())
        .map(|(name, colour, points)| Line { name, colour, points: steps(points) })
        .collect();
    let below = format!("transitions by request, in percent; the share of {} URLs that have no more", survey.counted);
    drawing::chart(drawing::Frame { width: 720, height: 480, x: 0.0..100.0, y: 0.0..100.0, below: &below }, &lines)
}
