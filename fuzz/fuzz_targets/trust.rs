#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    partywall_trust::fuzz::trust(data);
});
