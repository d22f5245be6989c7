//! Records of bytes, laid out one behind the other in chunks, and found through a compact index.
