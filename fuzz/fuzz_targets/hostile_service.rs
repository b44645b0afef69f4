#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    partywall::fuzz::hostile_service(data);
});
