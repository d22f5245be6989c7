//! The classes, compared with jemalloc's published list.

use super::{entry_class, size_class};

#[test]
fn size_classes_follow_the_published_list() {
    let list = [
        8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536,
        1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 14336, 16384, 20480,
    ];
    let mut wanted = list.iter().copied().peekable();
    for bytes in 1..=20480 {
        if *wanted.peek().unwrap() < bytes {
            wanted.next();
        }
        assert_eq!(size_class(bytes), *wanted.peek().unwrap(), "{bytes} bytes");
    }
}

#[test]
fn sizes_that_cannot_be_allocated_do_not_overflow() {
    assert_eq!(size_class(0), 8);
    assert_eq!(size_class(usize::MAX), usize::MAX);
}

#[test]
fn entries_have_classes_of_all_multiples_of_eight() {
    for bytes in 0..=256 {
        let class = entry_class(bytes);
        assert!(class >= bytes.max(16) && class.is_multiple_of(8), "{bytes} bytes");
        assert!(class == 16 || class < bytes + 8, "{bytes} bytes");
        assert!(class <= size_class(bytes).max(16), "{bytes} bytes");
    }
    for bytes in 257..20_480 {
        assert_eq!(entry_class(bytes), size_class(bytes));
    }
}
