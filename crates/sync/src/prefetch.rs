//! Prefetch instructions as safe functions: a prefetch may be given any address.
//!
//! `core::arch::x86_64::_mm_prefetch` is not used, because its write hint falls back to a plain prefetch on the
//! baseline target, while `prefetchw` itself runs on every 64-bit processor (as a no-op on those that lack it).

/// Prefetches the line at `address`, which need not be valid.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: rule 7.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) address.addr(), options(nomem, nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: rule 7.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) address.addr(), options(nomem, nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

/// Prefetches the line at `address` for writing: other cores give up their copies.
#[inline(always)]
pub fn prefetch_for_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: rule 7.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address.addr(), options(nomem, nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: rule 7.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address.addr(), options(nomem, nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

/// Prefetches the first line of `value`.
#[inline(always)]
pub fn prefetch_read<T: ?Sized>(value: &T) {
    prefetch(std::ptr::from_ref(value).cast());
}
