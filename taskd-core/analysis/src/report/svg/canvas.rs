//! Elements of an SVG image.

use crate::report::text::escape;
use std::fmt::Write as _;

/// Height of the title.
const TITLE: f64 = 26.0;

/// An image that grows by its elements. Coordinates are pixels below the title.
pub(super) struct Canvas {
    body: String,
    width: f64,
    height: f64,
    title: String,
}

impl Canvas {
    /// An image of this size, without the title's height.
    pub(super) fn new(title: &str, width: f64, height: f64) -> Canvas {
        Canvas { body: String::new(), width, height, title: escape(title) }
    }

    /// A filled rectangle; the note is shown by viewers that have tooltips.
    pub(super) fn rect(&mut self, (x, y, width, height): (f64, f64, f64, f64), colour: &str, note: &str) {
        let y = y + TITLE;
        let _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\" fill=\"{colour}\""
        );
        let _ = match note {
            "" => writeln!(self.body, "/>"),
            note => writeln!(self.body, "><title>{}</title></rect>", escape(note)),
        };
    }

    /// A frame without a filling.
    pub(super) fn frame(&mut self, (x, y, width, height): (f64, f64, f64, f64), colour: &str) {
        let y = y + TITLE;
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"2\"/>"
        );
    }

    /// A line through points.
    pub(super) fn line(&mut self, points: &[(f64, f64)], colour: &str, width: f64) {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "{x:.1},{:.1} ", y + TITLE);
        }
        let path = path.trim_end();
        let _ = writeln!(
            self.body,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        );
    }

    /// A text; `anchor`: `start`, `middle` or `end`.
    pub(super) fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let (y, text) = (y + TITLE, escape(text));
        let _ = writeln!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
    }

    /// Names with their colours, in one line.
    pub(super) fn legend(&mut self, y: f64, entries: &[(&str, &str)]) {
        let mut x = 8.0;
        for (name, colour) in entries {
            self.rect((x, y - 9.0, 10.0, 10.0), colour, "");
            self.text(x + 14.0, y, "start", name);
            x += 30.0 + 7.0 * name.chars().count() as f64;
        }
    }

    /// Round marks of a vertical axis from 0 to `top`, with lines across the plot (left, top, width, height).
    pub(super) fn axis(&mut self, (x, y, width, height): (f64, f64, f64, f64), top: f64, unit: &str) {
        for (value, share) in ticks(top) {
            let at = y + height * (1.0 - share);
            self.rect((x, at, width, 0.6), "#8f9aa8", "");
            self.text(x - 5.0, at + 4.0, "end", &format!("{value} {unit}"));
        }
    }

    /// The image as text.
    pub(super) fn finish(self) -> String {
        let Canvas { body, width, height, title } = self;
        let height = height + TITLE;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\">\n\
             <style>text{{font:11px system-ui,sans-serif;fill:#1b2128}}.paper{{fill:#fff}}\
             @media (prefers-color-scheme:dark){{text{{fill:#e6e9ed}}.paper{{fill:#14181d}}}}</style>\n\
             <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
             <text x=\"8\" y=\"17\" style=\"font-weight:600;font-size:13px\">{title}</text>\n{body}</svg>\n"
        )
    }
}

/// Returns at most six round values from 0 to `top`, as text, with their shares of `top`.
pub(super) fn ticks(top: f64) -> Vec<(String, f64)> {
    if !top.is_finite() || top <= 0.0 {
        return Vec::new();
    }
    let power = 10_f64.powf((top / 5.0).log10().floor());
    let size = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|size| top / size <= 5.0);
    let size = size.unwrap_or(top);
    let marks = (0..=5_u32).map(|mark| f64::from(mark) * size).take_while(|value| *value <= top);
    marks.map(|value| (super::super::text::number(value), value / top)).collect()
}
