//! Makes text from the server printable.
//!
//! A client chooses its name, and any client chooses the names of keys, so both may contain escape sequences of
//! terminals. Every text of the server passes through [`printable`] before it enters the model.

#[cfg(test)]
mod tests;

/// Returns the text with everything that is not printable escaped, cut after `limit` characters.
///
/// Control characters, and characters that change the direction or have no width, become `\u{..}`, bytes that are not
/// UTF-8 become `\xNN`, and a backslash is doubled. Cut text ends in `…`.
pub fn printable(bytes: &[u8], limit: usize) -> String {
    let mut text = String::new();
    let mut length = 0;
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if length >= limit {
                text.push('…');
                return text;
            }
            length += push_character(&mut text, character);
        }
        for byte in chunk.invalid() {
            if length >= limit {
                text.push('…');
                return text;
            }
            text.push_str(&format!("\\x{byte:02x}"));
            length += 4;
        }
    }
    text
}

/// Appends a character, escaped if necessary, and returns the number of characters appended.
fn push_character(text: &mut String, character: char) -> usize {
    let before = text.len();
    match character {
        '\\' => text.push_str("\\\\"),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        _ if !is_printable(character) => text.push_str(&character.escape_unicode().to_string()),
        _ => {
            text.push(character);
            return 1;
        }
    }
    text.len() - before
}

/// Returns `true` for characters that a terminal shows as they are. Marks that combine with other characters, and
/// characters for private use, are not among them.
fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            '\u{ad}'
                | '\u{300}'..='\u{36f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{e000}'..='\u{f8ff}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{e0000}'..='\u{10ffff}'
        )
}
