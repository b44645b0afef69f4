//! Functions of the corpus that use crates, and messages of `.proto` files.

//= proto_echo
//? \x0a\x03abc\x10\x07
//> \x0a\x03abc\x10\x07
//? \x0a\x09abc
//? 
mod pb;
pub fn handle(request: Request<'_>) -> Reply {
    let message: pb::echo::Message = request.message()?;
    reply(&message)
}
//- echo.proto
syntax = "proto3";
package echo;
message Message { string text = 1; uint32 number = 2; }

//= proto_greeting
//? \x0a\x03abc\x12\x04\x08\x80\xf4\x03
//> \x0a\x17Hello, abc, from 64000!\x12\x04\x08\x80\xf4\x03
//? \x12\x00
mod pb;
use pb::greeting::v1::{Answer, Hello};
pub fn handle(request: Request<'_>) -> Reply {
    let Hello { name, at } = request.message()?;
    let seconds = at.as_ref().map_or(0, |at| at.seconds);
    reply(&Answer { text: format!("Hello, {name}, from {seconds}!"), at })
}
//- greeting.proto
syntax = "proto3";
package greeting.v1;
import "google/protobuf/timestamp.proto";
message Hello { string name = 1; google.protobuf.Timestamp at = 2; }
message Answer { string text = 1; google.protobuf.Timestamp at = 2; }

//= proto_packages
//? \x0a\x02\x08\x05\x0a\x02\x08\x07\x12\x05\x0a\x01a\x10\x02
//? \x1a\x00
mod pb;
pub fn handle(request: Request<'_>) -> Reply {
    let mut order: pb::shop::orders::Order = request.message()?;
    order.items.push(pb::shop::things::Thing { number: order.items.iter().map(|i| i.number).sum() });
    for (_, count) in &mut order.counts { *count *= 2 }
    order.kind = Some(match order.kind.take() {
        Some(pb::shop::orders::order::Kind::Gift(text)) => pb::shop::orders::order::Kind::Other(text.len() as i64),
        _ => pb::shop::orders::order::Kind::Gift("new".into()),
    });
    order.set_state(pb::shop::orders::State::Packed);
    reply(&order)
}
//- shop/orders.proto
syntax = "proto3";
package shop.orders;
import "shop/things.proto";
enum State { STATE_NEW = 0; STATE_PACKED = 1; }
message Order {
    repeated shop.things.Thing items = 1;
    map<string, uint32> counts = 2;
    oneof kind { string gift = 3; sint64 other = 4; }
    State state = 5;
}
//- shop/things.proto
syntax = "proto3";
package shop.things;
message Thing { uint32 number = 1; }

//= proto_old
//? 
//? \x08\x05\x12\x03abc\x1d\x00\x00\x80\x3f
mod pb;
pub fn handle(request: Request<'_>) -> Reply {
    let old: pb::Old = request.message()?;
    Ok(format!("{} {} {} {:?}", old.number(), old.text(), old.real(), old.parts).into_bytes())
}
//- old.proto
syntax = "proto2";
message Old {
    optional int32 number = 1 [default = -7];
    optional string text = 2 [default = "none"];
    optional float real = 3 [default = 2.5];
    repeated fixed64 parts = 4 [packed = true];
}

//= proto_by_hand
//? \x08\x03\x12\x02\x08\x01\x12\x02\x08\x02\x1a\x02hi
//? \x08
/// A tree of numbers.
#[derive(Clone, PartialEq, ::prost::Message)]
struct Tree {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(message, repeated, tag = "2")]
    inner: Vec<Tree>,
    #[prost(bytes = "vec", tag = "3")]
    bytes: Vec<u8>,
}
fn sum(tree: &Tree) -> u64 { tree.number + tree.inner.iter().map(sum).sum::<u64>() }
pub fn handle(request: Request<'_>) -> Reply {
    let tree: Tree = request.message()?;
    reply(&Tree { number: sum(&tree), inner: tree.inner.into_iter().rev().collect(), bytes: tree.bytes })
}

//= proto_lengths
//? abc
//? 
use prost::Message as _;
pub fn handle(request: Request<'_>) -> Reply {
    let text = request.text()?.to_owned();
    let mut all = Vec::new();
    for n in 0..4 { text.repeat(n * 50).encode_length_delimited(&mut all).map_err(|e| e.to_string())? }
    let mut rest = &all[..];
    let mut sizes = Vec::new();
    while !rest.is_empty() {
        let text = String::decode_length_delimited(&mut rest).map_err(|e| Error::invalid(e.to_string()))?;
        sizes.push(text.len().to_string());
    }
    Ok(sizes.join(" ").into_bytes())
}

//= json_values
//? {"b": [1, 2.5, -3e10, null], "a": {"c": "\\u00e9\\n", "d": true}}
//? [1, {"a": 18446744073709551615}]
//? {"a": }
use serde_json::{Value, json};
fn doubled(value: Value) -> Value {
    match value {
        Value::Number(n) => n.as_f64().map_or(Value::Null, |n| json!(n * 2.0)),
        Value::String(text) => Value::String(text.chars().rev().collect()),
        Value::Array(all) => all.into_iter().map(doubled).collect(),
        Value::Object(all) => all.into_iter().map(|(k, v)| (k, doubled(v))).collect(),
        other => other,
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let value: Value = serde_json::from_slice(request.body()).map_err(|e| Error::invalid(e.to_string()))?;
    let kind = json!({ "value": doubled(value), "bytes": request.body().len() });
    Ok(serde_json::to_vec_pretty(&kind).map_err(|e| e.to_string())?)
}

//= json_typed
//? [{"kind": "circle", "radius": 1.5}, {"kind": "box", "widthCm": 2, "tags": ["a"]}]
//? [{"kind": "line"}]
//? [{"kind": "box", "widthCm": 300, "more": 1}]
use serde::{Deserialize, Serialize};
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Shape {
    Circle { radius: f64 },
    #[serde(rename_all = "camelCase")]
    Box {
        width_cm: u8,
        #[serde(default = "one")]
        height_cm: u8,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tags: Vec<String>,
    },
}
fn one() -> u8 { 1 }
pub fn handle(request: Request<'_>) -> Reply {
    let mut all: Vec<Shape> = serde_json::from_slice(request.body()).map_err(|e| Error::invalid(e.to_string()))?;
    for shape in &mut all {
        match shape {
            Shape::Circle { radius } => *radius *= 2.0,
            Shape::Box { tags, .. } => tags.push("seen".into()),
        }
    }
    serde_json::to_vec(&all).map_err(|e| e.to_string().into())
}

//= json_borrowed
//? {"name": "a\\"b", "plain": "text", "n": [1, 2], "rest": {"x": 1}}
//? {"name": "a"}
use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use serde::Deserialize;
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    plain: &'a str,
    n: (i8, i8),
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}
pub fn handle(request: Request<'_>) -> Reply {
    let line: Line<'_> = serde_json::from_str(request.text()?).map_err(|e| Error::invalid(e.to_string()))?;
    Ok(format!("{} {} {} {:?}", line.name, line.plain, line.n.0 + line.n.1, line.rest).into_bytes())
}

//= json_pointer
//? /a/1/b\n{"a": [0, {"b": 1e-7}]}
//? /a\n{"b": 1}
//? none
pub fn handle(request: Request<'_>) -> Reply {
    let (path, text) = request.text()?.split_once('\n').ok_or("two lines")?;
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| Error::invalid(e.to_string()))?;
    let found = value.pointer(path).ok_or_else(|| Error::new(Code::NotFound, path))?;
    Ok(found.to_string().into_bytes())
}

//= json_numbers
//? 0.1 1e300 -5e-324 123456789.125 1 -0.0 3.4028235e38
//? 1e400
pub fn handle(request: Request<'_>) -> Reply {
    let numbers: Vec<f64> = request.text()?.split(' ')
        .map(|n| serde_json::from_str(n).map_err(|e| Error::invalid(e.to_string())))
        .collect::<Result<_, _>>()?;
    Ok(serde_json::to_vec(&(&numbers, numbers.iter().map(|n| *n as f32).collect::<Vec<_>>())).map_err(|e| e.to_string())?)
}

//= json_deep
//? 100
//? 200
pub fn handle(request: Request<'_>) -> Reply {
    let depth: usize = request.text()?.parse().map_err(|_| Error::invalid("a number"))?;
    let text = "[".repeat(depth) + &"]".repeat(depth);
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| Error::invalid(e.to_string()))?;
    Ok(value.to_string().into_bytes())
}

//= digest_$KIND
//: KIND = Sha224 | Sha256 | Sha384 | Sha512 | Sha512_256
//? abc
//? 
//? a longer text, which is over one hundred and twenty-eight bytes long, so that there is
//&  more than one block to be hashed: 0123456789
use sha2::{$KIND, Digest as _};
pub fn handle(request: Request<'_>) -> Reply {
    let mut digest = $KIND::new();
    for part in request.body().chunks(7) { digest.update(part) }
    Ok(digest.finalize().iter().map(|b| format!("{b:02x}")).collect::<String>().into_bytes())
}

//= hmac
//? key\nThe quick brown fox jumps over the lazy dog
//> f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8
//? a key that is longer than the block of the digest, which has only sixty-four bytes in it\nx
use sha2::{Digest as _, Sha256};
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut block = [0_u8; 64];
    match key.len() {
        ..=64 => block[..key.len()].copy_from_slice(key),
        _ => block[..32].copy_from_slice(&Sha256::digest(key)),
    }
    let inner = Sha256::new().chain_update(block.map(|b| b ^ 0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(block.map(|b| b ^ 0x5c)).chain_update(inner).finalize().into()
}
pub fn handle(request: Request<'_>) -> Reply {
    let (key, text) = request.text()?.split_once('\n').ok_or("a key and a text")?;
    Ok(hmac(key.as_bytes(), text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect::<String>().into_bytes())
}

//= base64_$ENGINE
//: ENGINE = BASE64_STANDARD | BASE64_STANDARD_NO_PAD | BASE64_URL_SAFE | BASE64_URL_SAFE_NO_PAD
//? any carnal pleas\xfb\xff\xfe
//? +/+/
//? YQ==
//? Y
use base64::prelude::*;
pub fn handle(request: Request<'_>) -> Reply {
    let there = $ENGINE.encode(request.body());
    let back = match $ENGINE.decode(request.body()) {
        Ok(bytes) => format!("{bytes:?}"),
        Err(why) => why.to_string(),
    };
    Ok(format!("{there} {back}").into_bytes())
}

//= token
//? eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2ln
//? eyJhbGciOiJub25lIn0.e30.
//? a.b
/// The claims of a token, with the digest of what was signed.
use base64::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
#[derive(Deserialize)]
struct Head { alg: String }
#[derive(Serialize)]
struct Claims { alg: String, claims: serde_json::Value, digest: String, signature: usize }
fn part<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Error> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|e| Error::invalid(e.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|e| Error::invalid(e.to_string()))
}
pub fn handle(request: Request<'_>) -> Reply {
    let (text, signature) = request.text()?.rsplit_once('.').ok_or("no token")?;
    let (head, claims) = text.split_once('.').ok_or("no claims")?;
    let Head { alg } = part(head)?;
    let claims = Claims {
        alg,
        claims: part(claims)?,
        digest: BASE64_STANDARD.encode(Sha256::digest(text)),
        signature: signature.len(),
    };
    serde_json::to_vec(&claims).map_err(|e| e.to_string().into())
}

//= proto_to_json
//? \x0a\x03abc\x12\x02\x01\x02\x18\x01
//? \x18\x07
mod pb;
use base64::prelude::*;
use pb::{Kind, Record};
pub fn handle(request: Request<'_>) -> Reply {
    let record: Record = request.message()?;
    let kind = Kind::try_from(record.kind).map_err(|e| Error::invalid(e.to_string()))?;
    let json = serde_json::json!({
        "name": record.name,
        "bytes": BASE64_STANDARD.encode(&record.bytes),
        "kind": kind.as_str_name(),
    });
    Ok(json.to_string().into_bytes())
}
//- record.proto
syntax = "proto3";
enum Kind { KIND_NONE = 0; KIND_SOME = 1; }
message Record { string name = 1; bytes bytes = 2; Kind kind = 3; }
