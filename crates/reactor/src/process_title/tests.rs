//! Tests of parsing the memory bounds. The tests of titles run a whole process.

use super::MemoryBounds;

#[test]
fn fields_are_parsed_after_any_process_name() {
    let numbers: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
    let text = format!("77 (a) b (c) S {}\n", numbers.join(" "));
    let borders = MemoryBounds::parse(&text).expect("all fields are there");
    let expected = MemoryBounds {
        code: [26, 27],
        stack: 28,
        data: [45, 46, 47],
        environment: [50, 51],
    };
    assert_eq!(borders, expected);
    assert_eq!(MemoryBounds::parse("77 (a) S 1 2 3"), None);
    assert_eq!(MemoryBounds::parse(""), None);
}
