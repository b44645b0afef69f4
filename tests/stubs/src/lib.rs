//! One set of services and callers, by the stubs of tonic and by those of partywall-build: the file
//! `services.rs` is compiled twice, without a difference.
#![forbid(unsafe_code)]

/// By partywall-build.
pub mod ours {
    /// What is generated.
    #[allow(missing_docs)]
    pub mod pb {
        include!(concat!(env!("OUT_DIR"), "/partywall/stubs.v1.rs"));
    }
    mod services {
        include!("services.rs");
    }
    pub use services::*;
}

/// By tonic-prost-build.
pub mod tonics {
    /// What is generated.
    #[allow(missing_docs)]
    pub mod pb {
        include!(concat!(env!("OUT_DIR"), "/tonic/stubs.v1.rs"));
    }
    mod services {
        include!("services.rs");
    }
    pub use services::*;
}
