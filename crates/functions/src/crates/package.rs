//! What the build script packs of the reviewed crates, and what was reviewed. The build script has this file
//! too.

use serde::{Deserialize, Serialize};

/// The sources of a crate, and how it is compiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Package {
    /// Its name in the registry.
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) edition: String,
    /// Whether the compiler loads it, instead of linking it.
    pub(crate) is_macro: bool,
    pub(crate) features: Vec<String>,
    /// What it calls others, and which package that is: one before this.
    pub(crate) needs: Vec<(String, usize)>,
    /// Paths below `src`, and texts.
    pub(crate) files: Vec<(String, String)>,
}

/// Each crate that was reviewed: SHA-256 over all of its package but what it needs.
#[rustfmt::skip]
pub(crate) const REVIEWED: [(&str, &str, &str); 26] = [
    ("anyhow", "1.0.104", "2a2bd7c96e21d6710072cbe5e9a0ca83e8846809c118938dac877306328bba10"),
    ("base64", "0.22.1", "2d746c6cca7af5918fe2a94efed33b326c0185b01b25f9ec07de61fac2de0a93"),
    ("block-buffer", "0.12.1", "9d9f6036c8c1492e53b42b99f688b31ca83159efec5664d6b0198c0799a3ccf7"),
    ("bytes", "1.12.1", "ce29906c5e57a07ea5ffb28c26ccf8c0f99773318230417905b14b06977521fc"),
    ("cfg-if", "1.0.5", "6236dad2cf51061d00ebd2173b92395fed06ce6e4344ba5a37892fb9571691d5"),
    ("crypto-common", "0.2.2", "e58efb7a269e34aaf829d8ecdf6d190a3b25d6cea54d9f22abb97436a55b28dd"),
    ("digest", "0.11.3", "4808bdb12b80bececf759505772c9416f0cd3d767900d8f1eb0b8530e7c56eb4"),
    ("either", "1.19.0", "e5621c55060b13fec452de44529e3a8e3333596d1954cd5c32e78e091d74f270"),
    ("hybrid-array", "0.4.15", "b123deb828e4f054f9b3aabc0f0d6d81e6c60b90e39feb46718a63b5061492c3"),
    ("itertools", "0.14.0", "5879650998ca966bbf6eef8a420f4af13ba5ee282cb982d4d9c2031a35631301"),
    ("itoa", "1.0.18", "84145cbe16b5dba14126c76399c2badb62773af93a93999b944de1e4297dc601"),
    ("memchr", "2.8.3", "b6747624be090f4e09c7a1db777a7888ac125318c9ca4d3e185665a27a602278"),
    ("proc-macro2", "1.0.107", "cc886e2c3d14eaee75214728f15642557e52c4d4da7fa4011a58044561b4b170"),
    ("prost", "0.14.4", "b8c915c24ff1d7e385a4ef7ac2db31b13244a23dc6439125cd9fe6a125e7666b"),
    ("prost-derive", "0.14.4", "2b5626e497bbe3fbb15352e6675903a4cc664d5a4a565b96621ad728ebd41b98"),
    ("quote", "1.0.47", "0e2d40baa8ebf96143ffd7f7af5352e2f3b408c043bb156d06f53b3018f908ad"),
    ("serde", "1.0.229", "dd6352978d7b40b547aba5928bb70a059f3b40f2ca54080c444f2fc9ec7217f4"),
    ("serde_core", "1.0.229", "1620627a3c189ed80c380d02d4afd0a7d0005205e3e6508a6a778a63618fa972"),
    ("serde_derive", "1.0.229", "cd489f971461e4d78cb287ab117e58ba43a06f486b119590dbbcd109803daaa3"),
    ("serde_json", "1.0.154", "7d0d1f87786cef7f32592176049ed709d25d012b5d6147bbe8fb892e5613f554"),
    ("sha2", "0.11.1", "564285121b7ffcb3264f6f3946a1718f8e226a0c9291c68ed65a70afbf99a3f0"),
    ("syn", "2.0.119", "44450482904e9dbe943aef7db08a619958c81f0110a6c67b789126e15d597fbb"),
    ("syn", "3.0.9", "d03056595576182b4c43d3856b0d702119bfdd2d86ab8fb5e4d201f7858f1a66"),
    ("typenum", "1.20.1", "4972dd0eba686244b7f2dfdd19466479c8ca41b45b26f36cd5f93781597c5230"),
    ("unicode-ident", "1.0.27", "6ee7f2807d7cd565458480de321fab86c48fef8e2820b6cb968ca7fa6e6b787c"),
    ("zmij", "1.0.23", "e906237dbe6a267ed181f977b6baccf04e0e3ee2ef49ba3a2e98fc2b608b3400"),
];
