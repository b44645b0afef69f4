#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    partywall_functions::fuzz::function_image(data);
});
