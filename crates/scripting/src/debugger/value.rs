//! Formats Lua values for a debugger's user.

use mlua::{Table, Value};

use crate::number::format_general;

/// The maximum nesting of the tables that are shown.
const NESTING_MAX: usize = 10;
/// The number of significant digits of a number.
const DIGITS: usize = 6;

/// Appends a readable form of a value.
pub fn append_value(value: &Value, out: &mut Vec<u8>) {
    append(value, 0, out);
}

fn append(value: &Value, depth: usize, out: &mut Vec<u8>) {
    if depth == NESTING_MAX {
        return out.extend_from_slice(b"<max recursion level reached! Nested table?>");
    }
    match value {
        Value::Nil => out.extend_from_slice(b"nil"),
        Value::Boolean(true) => out.extend_from_slice(b"true"),
        Value::Boolean(false) => out.extend_from_slice(b"false"),
        Value::String(text) => out.extend_from_slice(&text.as_bytes()),
        Value::Integer(number) => append_number(*number as f64, out),
        Value::Number(number) => append_number(*number, out),
        Value::Table(table) => append_table(table, depth + 1, out),
        Value::Function(_) => append_address("function", value, out),
        Value::Thread(_) => append_address("thread", value, out),
        Value::LightUserData(_) => append_address("light-userdata", value, out),
        _ => append_address("userdata", value, out),
    }
}

/// Appends a number as C's `snprintf` does, which ends the text before it at the first zero byte.
fn append_number(number: f64, out: &mut Vec<u8>) {
    cut_at_zero(out);
    format_general(number, DIGITS, out);
}

fn append_address(what: &str, value: &Value, out: &mut Vec<u8>) {
    cut_at_zero(out);
    let pointer = value.to_pointer();
    let address = match pointer.is_null() {
        true => "(nil)".to_owned(),
        false => format!("{pointer:p}"),
    };
    out.extend_from_slice(format!(" \"{what}@{address}\"").as_bytes());
}

fn cut_at_zero(out: &mut Vec<u8>) {
    if let Some(zero) = out.iter().position(|byte| *byte == 0) {
        out.truncate(zero);
    }
}

/// Appends a table. The keys are left out if they are 1, 2, 3 and so on, in this order.
fn append_table(table: &Table, depth: usize, out: &mut Vec<u8>) {
    let (mut as_list, mut as_map) = (Vec::new(), Vec::new());
    let mut is_list = true;
    for (expected, pair) in (1i64..).zip(table.pairs::<Value, Value>()) {
        let Ok((key, value)) = pair else {
            break;
        };
        is_list &= matches!(key, Value::Integer(number) if number == expected);
        append(&value, depth, &mut as_list);
        as_list.extend_from_slice(b"; ");
        as_map.push(b'[');
        append(&key, depth, &mut as_map);
        as_map.extend_from_slice(b"]=");
        append(&value, depth, &mut as_map);
        as_map.extend_from_slice(b"; ");
    }
    out.push(b'{');
    out.extend_from_slice(if is_list { &as_list } else { &as_map });
    out.push(b'}');
}
