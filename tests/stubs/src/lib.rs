//! One set of services and callers, by the stubs of tonic and by those of partywall-build: the file
//! `services.rs` is compiled twice, without a difference.
#![forbid(unsafe_code)]

mod calls;
mod own;

pub use calls::{Asked, Caller, Calling, Outcome, Settings, code_and_text};
pub use own::{Own, PANICS};

/// By partywall-build.
pub mod ours {
    /// What is generated.
    #[allow(missing_docs)]
    pub mod pb {
        include!(concat!(env!("OUT_DIR"), "/partywall/stubs.v1.rs"));
    }
    /// What is generated of a later release; one method of it is called `IntoInner`.
    #[allow(missing_docs, clippy::wrong_self_convention)]
    pub mod later {
        include!(concat!(env!("OUT_DIR"), "/partywall/later/stubs.v1.rs"));
    }
    /// What is generated for long messages.
    #[allow(missing_docs)]
    pub mod frames {
        include!(concat!(env!("OUT_DIR"), "/partywall/frames/frames.v1.rs"));
    }
    /// The descriptors of the file.
    pub const DESCRIPTORS: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/partywall/descriptors.bin"));
    mod services {
        include!("services.rs");
    }
    mod threaded;
    pub use services::*;
    pub use threaded::Threaded;
}

/// By partywall-build, of a file with demands.
#[allow(missing_docs)]
pub mod demands {
    include!(concat!(env!("OUT_DIR"), "/partywall/demands/demands.v1.rs"));
}

/// The same services, of a file without.
#[allow(missing_docs)]
pub mod free {
    include!(concat!(env!("OUT_DIR"), "/partywall/free/demands.v1.rs"));
}

/// By tonic-prost-build.
pub mod tonics {
    /// What is generated.
    #[allow(missing_docs)]
    pub mod pb {
        include!(concat!(env!("OUT_DIR"), "/tonic/stubs.v1.rs"));
    }
    /// What is generated of a later release; one method of it is called `IntoInner`.
    #[allow(missing_docs, clippy::wrong_self_convention)]
    pub mod later {
        include!(concat!(env!("OUT_DIR"), "/tonic/later/stubs.v1.rs"));
    }
    /// What is generated for long messages.
    #[allow(missing_docs)]
    pub mod frames {
        include!(concat!(env!("OUT_DIR"), "/tonic/frames/frames.v1.rs"));
    }
    /// The descriptors of the file.
    pub const DESCRIPTORS: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/tonic/descriptors.bin"));
    mod services {
        include!("services.rs");
    }
    pub use services::*;
}
