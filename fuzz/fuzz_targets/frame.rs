#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    partywall_abi::fuzz::frame(data);
});
