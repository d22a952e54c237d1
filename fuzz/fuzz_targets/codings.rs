#![no_main]

#[expect(dead_code, reason = "each program uses one target")]
#[path = "../../tests/fuzz/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::codings(data));
