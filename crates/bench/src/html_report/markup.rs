//! Text and tables as HTML.

use std::fmt::Write;

use crate::report::ReportTable;

/// Returns `text` with the characters replaced that have a meaning in HTML and SVG, also within attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // The other control characters may not occur in a document.
            _ if character.is_control() && !matches!(character, '\n' | '\t') => {
                escaped.push(char::REPLACEMENT_CHARACTER)
            }
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Appends a paragraph.
pub fn write_paragraph(html: &mut String, text: &str) {
    let _ = writeln!(html, "<p>{}</p>", escape(text));
}

/// Appends a table whose first column names the rows. It scrolls by itself if it is wider than the page.
pub fn write_table(html: &mut String, table: &ReportTable) {
    html.push_str("<div class=\"table\"><table>\n<thead><tr>");
    for head in &table.heads {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(head));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let text = escape(cell);
            let _ = match column {
                0 => write!(html, "<th scope=\"row\">{text}</th>"),
                _ => write!(html, "<td>{text}</td>"),
            };
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table></div>\n");
}

/// Appends a list of names, each with a text that was typed or printed as it is, such as a command.
pub fn write_definitions<'t>(html: &mut String, definitions: impl IntoIterator<Item = (&'t str, &'t str)>) {
    html.push_str("<dl>\n");
    for (name, text) in definitions {
        let _ = writeln!(html, "<dt>{}</dt><dd><code>{}</code></dd>", escape(name), escape(text));
    }
    html.push_str("</dl>\n");
}
