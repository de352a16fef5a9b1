//! The few marks that our pictures are made of, as SVG that is legible on light and dark ground.

/// What every picture looks like; a mark takes the colour of its class.
const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#57606a}.title{font-size:15px;font-weight:600}\
.axis,.grid{stroke:#8c959f;fill:none}.grid{stroke-opacity:.3}";
const DARK: &str = "text{fill:#b1bac4}";

/// A colour on light ground and on dark ground.
type Colour = (&'static str, &'static str);
const COLOURS: [Colour; 3] =
    [("#d1495b", "#e5677a"), ("#2f7fd1", "#58a6ff"), ("#2a9d5c", "#3fb97a")];

/// A picture and its size.
pub(crate) struct Picture {
    /// In pixels.
    pub(crate) width: u32,
    /// In pixels.
    pub(crate) height: u32,
    /// Classes that stand for the first, second and third colour, as fill and as stroke.
    pub(crate) classes: [&'static str; 3],
    /// Rules beside the common ones.
    pub(crate) style: &'static str,
}

impl Picture {
    /// The document of `marks`.
    pub(crate) fn render(&self, marks: &[String]) -> String {
        let Self { width, height, classes, style } = self;
        let rules = |ground: fn(&Colour) -> &'static str| -> String {
            let rule = |(class, colour)| {
                let colour = ground(colour);
                format!(".{class}{{fill:{colour};stroke:{colour}}}")
            };
            classes.iter().zip(&COLOURS).map(rule).collect()
        };
        let (light, dark) = (rules(|colour| colour.0), rules(|colour| colour.1));
        let dark = format!("@media(prefers-color-scheme:dark){{{DARK}{dark}}}");
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\">\n\
             <style>{STYLE}{light}{dark}{style}</style>\n{}\n</svg>\n",
            marks.join("\n")
        )
    }
}

/// Text that stands at, or ends at, or is centred on a point.
pub(crate) fn text(x: u32, y: u32, anchor: &str, text: &str) -> String {
    format!(r#"<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>"#)
}

/// The line above everything else.
pub(crate) fn title(x: u32, text: &str) -> String {
    format!(r#"<text class="title" x="{x}" y="26">{text}</text>"#)
}

/// Marks along a path.
pub(crate) fn path(class: &str, d: &str) -> String {
    format!(r#"<path class="{class}" d="{d}"/>"#)
}

/// A tick below a horizontal axis, and what it stands for.
pub(crate) fn tick(x: u32, axis: u32, label: &str) -> String {
    path("axis", &format!("M{x} {axis}v5")) + &text(x, axis + 20, "middle", label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_its_colour_on_both_grounds() {
        let picture = Picture { width: 2, height: 1, classes: ["a", "b", "c"], style: ".x{}" };
        let svg = picture.render(&[path("b", "M0 0h1")]);
        let (light, dark) = svg.split_once("@media").unwrap();
        assert!(light.contains(".b{fill:#2f7fd1") && dark.contains(".b{fill:#58a6ff"), "{svg}");
        assert!(svg.ends_with("<path class=\"b\" d=\"M0 0h1\"/>\n</svg>\n"), "{svg}");
    }
}
