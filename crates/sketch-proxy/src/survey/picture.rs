//! The distributions as a picture, like figures 14 and 15 of the paper.

use super::{Point, Survey};
use crate::drawing::{self, Line};
use plotters::style::RGBColor;

/// Sites that have a line of their own, those with the most requests, and their colours. More could not be told apart.
const SITES: [RGBColor; 4] =
    [RGBColor(0, 90, 200), RGBColor(220, 120, 0), RGBColor(110, 80, 190), RGBColor(120, 120, 120)];

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
    // One site alone is all there is.
    let sites = survey.sites.iter().filter(|_| survey.sites.len() > 1);
    let sites = sites.zip(SITES).map(|(site, colour)| (site.site.as_str(), colour, &site.points));
    let lines: Vec<Line<'_>> = lines
        .into_iter()
        .chain(sites)
        .filter(|(_, _, points)| !points.is_empty())
        .map(|(name, colour, points)| Line { name, colour, points: steps(points) })
        .collect();
    let below = format!("transitions by request, in percent; the share of {} URLs that have no more", survey.counted);
    drawing::chart(drawing::Frame { width: 720, height: 480, x: 0.0..100.0, y: 0.0..100.0, below: &below }, &lines)
}
