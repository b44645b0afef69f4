//! The stubs of both generators, over rings and over HTTP/2.

mod answers;
mod attachments;
mod autos;
mod blocking;
mod cancellation;
mod compression;
mod differential;
mod drain;
mod limits;
mod links;
mod lying;
mod malformed;
mod numbers;
mod older;
mod ordinary;
mod parcels;
/// By partywall-build.
mod programs_by_ours {
    use partywall_stubs_tests::ours as stubs;
    include!("programs.rs");
}
/// By tonic-prost-build.
mod programs_by_tonics {
    use partywall_stubs_tests::tonics as stubs;
    include!("programs.rs");
}
mod random;
mod readiness;
mod requests;
mod rights;
mod unknown;
mod ways;
