//! A call that failed, as people and programs are told of it.

use std::fmt;
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partywall_abi::frame::CODES;
use prost::Message;
use prost_reflect::DescriptorPool;
use tonic::{Code, Status};
use tonic_types::pb;

use super::json;
use crate::terminal::in_line;

/// What is added to the code of a status for the exit status.
const BASE: u8 = 64;

/// The exit status of a command that was over time: that of DEADLINE_EXCEEDED.
pub(crate) const OVER_TIME: i32 = BASE as i32 + Code::DeadlineExceeded as i32;

/// A call that ended with a status other than OK.
#[derive(Debug)]
pub(crate) struct Failed {
    /// What was called.
    pub(crate) what: String,
    /// How it ended.
    pub(crate) status: Status,
    /// Types that its details may have.
    pub(crate) types: DescriptorPool,
    /// What to do about it, from its own line on; empty where that is not known.
    pub(crate) remedy: &'static str,
}

impl Failed {
    /// 64 and the code.
    pub(crate) fn exit_code(&self) -> ExitCode {
        // There are 17 codes.
        ExitCode::from(BASE + self.status.code() as u8)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its lines would look like ours.
        let message = in_line(self.status.message());
        let code = CODES[self.status.code() as usize];
        write!(f, "{}: {code}: {message}{}", self.what, self.remedy)?;
        for detail in details(self.status.details(), &self.types) {
            write!(f, "\ndetail: {detail}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failed {}

/// Each detail as JSON; the bytes in base64 where its type is not known.
fn details(bytes: &[u8], types: &DescriptorPool) -> Vec<String> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let Ok(status) = pb::Status::decode(bytes) else { return vec![STANDARD.encode(bytes)] };
    let known = DescriptorPool::decode(pb::FILE_DESCRIPTOR_SET).ok();
    let pools: Vec<&DescriptorPool> = [types].into_iter().chain(&known).collect();
    status.details.iter().map(|any| detail(&any.type_url, &any.value, &pools)).collect()
}

fn detail(url: &str, value: &[u8], pools: &[&DescriptorPool]) -> String {
    let name = url.rsplit('/').next().unwrap_or_default();
    let kind = pools.iter().find_map(|pool| pool.get_message_by_name(name));
    let message = kind.and_then(|kind| json::decode(kind, value).ok());
    let shown = message.and_then(|message| json::line(&message).ok());
    let shown = shown.and_then(|line| serde_json::from_str(&line).ok());
    let value: serde_json::Value = shown.unwrap_or_else(|| STANDARD.encode(value).into());
    serde_json::json!({"@type": url, "value": value}).to_string()
}

#[cfg(test)]
mod tests {
    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;

    fn shown(status: Status) -> String {
        let types = DescriptorPool::new();
        Failed { what: "a.B/C".into(), status, types, remedy: "" }.to_string()
    }

    #[test]
    fn details_of_known_types_are_json_and_others_base64() {
        let details =
            ErrorDetails::with_error_info("GONE", "example.org", [("a".into(), "b".into())]);
        let status =
            Status::with_error_details(Code::NotFound, "no such\x1b[2J\ndetail: ", details);
        let text = shown(status);
        assert!(text.starts_with("a.B/C: NOT_FOUND: no such\\u001b[2J\\u000adetail: \n"), "{text}");
        assert!(
            text.contains("google.rpc.ErrorInfo") && text.contains("\"reason\":\"GONE\""),
            "{text}"
        );
        let any = prost_reflect::prost_types::Any { type_url: "x/a.B".into(), value: vec![1, 2] };
        let details = pb::Status { code: 5, message: String::new(), details: vec![any] };
        let text = shown(Status::with_details(Code::NotFound, "", details.encode_to_vec().into()));
        assert!(text.ends_with(r#"detail: {"@type":"x/a.B","value":"AQI="}"#), "{text}");
        let text = shown(Status::with_details(Code::NotFound, "", vec![7].into()));
        assert!(text.ends_with("\ndetail: Bw=="), "{text}");
    }
}
