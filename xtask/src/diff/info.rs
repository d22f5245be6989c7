//! Compares replies of INFO: the names of all fields in their order, and every value that does not belong to the server
//! itself.
//!
//! Weft's own fields begin with `weft_`; they are left out, and so is a section that has no others. So are those of
//! single I/O threads: the compared Valkey has one thread. What Weft lacks and whose values are not compared stands in
//! [`Exceptions`].

use super::exceptions::Exceptions;

/// The start of the names of fields that only Weft has.
const OWN_PREFIX: &str = "weft_";

/// The start of the names of fields about one of several I/O threads. A number follows.
const THREAD_PREFIX: &str = "used_active_time_io_thread_";

/// The sections whose order is that of a hash table.
const UNORDERED_SECTIONS: &[&str] = &["Commandstats", "Latencystats"];

/// A section: its name, and its fields with their values.
type InfoSection = (String, Vec<(String, String)>);

/// Returns the first difference between two replies of INFO, as the texts of both; `None` if they agree.
pub fn first_difference(weft: &str, valkey: &str, exceptions: &Exceptions) -> Option<(String, String)> {
    let weft = own_fields_removed(sections(weft));
    let mut valkey = sections(valkey);
    for (section, fields) in &mut valkey {
        let has = |field: &str| {
            let own = weft.iter().filter(|(name, _)| name == section);
            own.flat_map(|(_, fields)| fields).any(|(name, _)| name == field)
        };
        fields.retain(|(field, _)| has(field) || !exceptions.may_lack_info_field(section, field));
    }
    let [weft, valkey] = [weft, valkey].map(|sections| comparable_lines(sections, exceptions));
    let place = (0..weft.len().max(valkey.len())).find(|place| weft.get(*place) != valkey.get(*place))?;
    let line = |lines: &[String]| lines.get(place).map_or("(end)", String::as_str).to_string();
    Some((line(&weft), line(&valkey)))
}

/// Splits a reply into sections.
fn sections(text: &str) -> Vec<InfoSection> {
    let mut sections: Vec<InfoSection> = Vec::new();
    // A verbatim string begins with its format.
    let text = text.strip_prefix("txt:").unwrap_or(text);
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix("# ") {
            sections.push((name.to_string(), Vec::new()));
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let field = (field.to_string(), value.to_string());
        match sections.last_mut() {
            Some((_, fields)) => fields.push(field),
            None => sections.push((String::new(), vec![field])),
        }
    }
    sections
}

fn own_fields_removed(mut sections: Vec<InfoSection>) -> Vec<InfoSection> {
    sections.retain_mut(|(_, fields)| {
        let had_fields = !fields.is_empty();
        fields.retain(|(name, _)| !name.starts_with(OWN_PREFIX) && !is_of_one_thread(name));
        !had_fields || !fields.is_empty()
    });
    sections
}

/// Returns `true` if a field is about one of several I/O threads.
fn is_of_one_thread(field: &str) -> bool {
    let number = field.strip_prefix(THREAD_PREFIX);
    number.is_some_and(|number| number.parse::<u8>().is_ok())
}

/// Returns one line for each section and field, with the value if it is compared.
fn comparable_lines(sections: Vec<InfoSection>, exceptions: &Exceptions) -> Vec<String> {
    let mut lines = Vec::new();
    for (section, mut fields) in sections {
        if UNORDERED_SECTIONS.contains(&section.as_str()) {
            fields.sort();
        }
        lines.push(format!("# {section}"));
        lines.extend(fields.into_iter().map(|(field, value)| {
            if exceptions.ignores_info_value(&section, &field) {
                return format!("{section}/{field}");
            }
            let parts: Vec<String> = value
                .split(',')
                .map(|part| match part.split_once('=') {
                    Some((name, _)) if exceptions.ignores_info_value(&section, &format!("{field}.{name}")) => {
                        format!("{name}=")
                    }
                    _ => part.to_string(),
                })
                .collect();
            format!("{section}/{field}:{}", parts.join(","))
        }));
    }
    lines
}

#[cfg(test)]
mod tests;
