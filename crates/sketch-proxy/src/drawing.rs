//! Charts in SVG, by plotters.

use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// What a chart shows.
pub(crate) struct Frame<'a> {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) x: Range<f64>,
    pub(crate) y: Range<f64>,
    /// What stands below.
    pub(crate) below: &'a str,
}

/// One line of it.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    pub(crate) colour: RGBColor,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart of lines; nothing if it cannot be drawn.
pub(crate) fn chart(frame: Frame<'_>, lines: &[Line<'_>]) -> String {
    let mut svg = String::new();
    let drawn = draw(&mut svg, frame, lines).map_err(|error| error.to_string());
    drawn.map_or_else(
        |error| {
            tracing::warn!(error, "a chart cannot be drawn");
            String::new()
        },
        |()| svg,
    )
}

fn draw(svg: &mut String, frame: Frame<'_>, lines: &[Line<'_>]) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::with_string(svg, (frame.width, frame.height)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(&area);
    builder.margin(10).x_label_area_size(45).y_label_area_size(50);
    let mut chart = builder.build_cartesian_2d(frame.x, frame.y)?;
    chart.configure_mesh().x_desc(frame.below).light_line_style(RGBColor(240, 240, 240)).draw()?;
    for line in lines {
        let series = LineSeries::new(line.points.iter().copied(), line.colour.stroke_width(2));
        let colour = line.colour;
        chart
            .draw_series(series)?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    let mut labels = chart.configure_series_labels();
    labels.position(SeriesLabelPosition::LowerRight).background_style(WHITE.mix(0.8)).draw()?;
    area.present()?;
    Ok(())
}
