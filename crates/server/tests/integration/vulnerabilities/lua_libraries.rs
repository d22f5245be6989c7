//! Vulnerabilities of the libraries that scripts can call: `bit`, `cjson`, `cmsgpack` and `struct`.

use super::{scripts_fail_like_valkey, scripts_like_valkey};

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2024_31449_the_width_of_tohex_is_limited() {
    scripts_like_valkey(&[
        ("return bit.tohex(65535, -2147483648)", "0000FFFF"),
        ("return bit.tohex(65535, 2147483647)", "0000ffff"),
        ("return bit.tohex(65535, -8)", "0000FFFF"),
        ("return bit.tohex(1, -2^53)", ""),
        ("return bit.tohex(0/0, 0/0)", ""),
        ("return bit.lshift(1, 2147483648)", "1"),
        ("return bit.tobit(2^53)", "0"),
    ]);
}

/// Lengths in the buffers of cjson and cmsgpack do not overflow.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2022_24834_long_and_deep_values_are_encoded_within_their_buffers() {
    let mut target = scripts_like_valkey(&[
        ("return #cjson.encode(string.rep('\\0', 100000))", "600002"),
        (
            "cjson.encode_keep_buffer(false) local s = string.rep('\\1', 1000000) return #cjson.encode({s, s, s})",
            "18000010",
        ),
        ("local t = {} t.t = t return #cmsgpack.pack(t)", "49"),
        ("return #cmsgpack.pack(unpack({}, 1, 200))", "200"),
        (
            "return cjson.decode('{\"a\":' .. string.rep('9', 400) .. '}').a == math.huge",
            "1",
        ),
    ]);
    target.serves_within(800 << 20);
    scripts_fail_like_valkey(&[
        (
            "local t = {} for i = 1, 1500 do t = {t} end return cjson.encode(t)",
            "Cannot serialise, excessive nesting (1001)",
        ),
        (
            "local t = {} t.t = t return cjson.encode(t)",
            "Cannot serialise, excessive nesting (1001)",
        ),
        (
            "return cjson.encode({[1] = 1, [2147483647] = 1})",
            "Cannot serialise table: excessively sparse array",
        ),
        (
            "return cjson.decode(string.rep('[', 1000000))",
            "Found too many nested data structures (1001) at character 1001",
        ),
    ]);
}

/// Lengths in the input of cmsgpack are checked against the input.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2018_11218_lengths_in_msgpack_input_are_checked() {
    const MISSING: &str = "Missing bytes in input.";
    let mut target = scripts_fail_like_valkey(&[
        ("return cmsgpack.unpack(string.char(0xdd, 255, 255, 255, 255))", MISSING),
        ("return cmsgpack.unpack(string.char(0xdf, 255, 255, 255, 255))", MISSING),
        ("return cmsgpack.unpack(string.char(0xdb, 255, 255, 255, 255))", MISSING),
        ("return cmsgpack.unpack(string.char(0xda, 255))", MISSING),
        (
            "return cmsgpack.unpack(string.char(0xc6, 255, 255, 255, 255))",
            "Bad data format in input.",
        ),
        ("return cmsgpack.unpack(string.char(0xc1))", "Bad data format in input."),
        // Both nest deeper than either server allows.
        (
            "return cmsgpack.unpack(string.rep(string.char(0x91), 1000000))",
            "stack overflow (in function mp_decode_to_lua_array)",
        ),
        (
            "return cmsgpack.unpack(string.rep(string.char(0x81, 1), 1000000))",
            "stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)",
        ),
        (
            "return cmsgpack.unpack_limit('abc', 2147483647, 2147483647)",
            "Start offset 2147483647 greater than input length 3.",
        ),
        (
            "return cmsgpack.unpack_limit('abc', 1, -1)",
            "Invalid request to unpack with offset of -1 and limit of 3.",
        ),
        (
            "return cmsgpack.unpack_one('abc', -2)",
            "Invalid request to unpack with offset of -2 and limit of 3.",
        ),
    ]);
    target.serves_within(400 << 20);
}

/// Sizes in formats of struct are checked, and so are offsets in its data.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2018_11219_sizes_in_struct_formats_are_checked() {
    const SHORT: &str = "bad argument #2 to 'unpack' (data string too short)";
    scripts_fail_like_valkey(&[
        ("return struct.unpack('c2147483647', 'a')", SHORT),
        ("return {struct.unpack('bc0', string.char(255) .. 'a')}", SHORT),
        ("return struct.unpack('i4', 'abcd', 2147483647)", SHORT),
        ("return struct.unpack('i4', 'abcd', -1)", SHORT),
        ("return struct.unpack('>i4', 'abcd', -4294967290)", SHORT),
        (
            "return struct.unpack('i4', 'abcd', 0)",
            "bad argument #3 to 'unpack' (offset must be 1 or greater)",
        ),
        (
            "return struct.pack('i33', 1)",
            "integral size 33 is larger than limit of 32",
        ),
        ("return struct.unpack('c0', 'a')", "format 'c0' needs a previous size"),
        ("return struct.unpack('s', 'abc')", "unfinished string in data"),
    ]);
    scripts_like_valkey(&[
        ("return struct.size('c2147483647c2147483647')", "4294967294"),
        ("return #struct.pack(string.rep('x', 100000))", "100000"),
    ]);
}

/// The number in a format does not overflow; CVE-2020-14147 was the same fault, come back.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2015_8080_and_cve_2020_14147_numbers_in_struct_formats_do_not_overflow() {
    const OVERFLOW: &str = "integral size overflow";
    scripts_fail_like_valkey(&[
        ("return struct.pack('>I2147483648', 1)", OVERFLOW),
        ("return struct.pack('I4294967297', 1)", OVERFLOW),
        ("return struct.pack('c2147483648', 'a')", OVERFLOW),
        ("return struct.pack('c4294967296', 'a')", OVERFLOW),
        ("return struct.unpack('c99999999999999999999', 'a')", OVERFLOW),
        ("return struct.unpack('!2147483648i4', 'abcd')", OVERFLOW),
        ("return struct.size('I9223372036854775808')", OVERFLOW),
        (
            "return struct.unpack('!3i4', 'abcd')",
            "alignment 3 is not a power of 2",
        ),
    ]);
}
