//! Functions of the corpus that hash and encode.

//= sha2_$BITS
//: BITS = 256 | 224
//? abc
//? 
//? abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq
const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];
@BITS
fn block(state: &mut [u32; 8], block: &[u8]) {
    let mut w = [0; 64];
    for (w, bytes) in w.iter_mut().zip(block.chunks(4)) { *w = u32::from_be_bytes(bytes.try_into().unwrap()) }
    for i in 16..64 {
        let s0 = w[i - 15].rotate_right(7) ^ w[i - 15].rotate_right(18) ^ w[i - 15] >> 3;
        let s1 = w[i - 2].rotate_right(17) ^ w[i - 2].rotate_right(19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for i in 0..64 {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let t1 = h.wrapping_add(s1).wrapping_add(e & f ^ !e & g).wrapping_add(K[i]).wrapping_add(w[i]);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let t2 = s0.wrapping_add(a & b ^ a & c ^ b & c);
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t1), c, b, a, t1.wrapping_add(t2));
    }
    for (s, v) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) { *s = s.wrapping_add(v) }
}
pub fn handle(request: Request<'_>) -> Reply {
    let mut text = request.body().to_vec();
    let bits = text.len() as u64 * 8;
    text.push(0x80);
    while text.len() % 64 != 56 { text.push(0) }
    text.extend(bits.to_be_bytes());
    let mut state = BEGIN;
    text.chunks(64).for_each(|b| block(&mut state, b));
    Ok(state[..WORDS].iter().map(|w| format!("{w:08x}")).collect::<String>().into())
}
//+ 256
const BEGIN: [u32; 8] = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
const WORDS: usize = 8;
//+ 224
const BEGIN: [u32; 8] = [0xc1059ed8, 0x367cd507, 0x3070dd17, 0xf70e5939, 0xffc00b31, 0x68581511, 0x64f98fa7, 0xbefa4fa4];
const WORDS: usize = 7;

//= sha512
//? abc
//> ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c
//> 23a3feebbd454d4423643ce80e2a9ac94fa54ca49f
//? a longer text, which is over one hundred and twenty-eight bytes long, so that there is
//&  more than one block to be hashed: 0123456789
/// The constants are made of primes, by integer roots.
const fn root(prime: u128, power: u32, begin: bool) -> u64 {
    // The fraction of the root, by bits: the largest x with x^power <= prime * 2^(64 * power).
    let mut x: u128 = 0;
    let mut bit = 68;
    while bit > 0 {
        bit -= 1;
        let try_x = x | 1 << bit;
        if at_most(try_x, power, prime) { x = try_x }
    }
    let _ = begin;
    x as u64
}
const fn at_most(x: u128, power: u32, prime: u128) -> bool {
    // x^power / 2^(64 * power) <= prime, in limbs of 32 bits.
    let mut product = [0_u64; 12];
    product[0] = 1;
    let mut n = 0;
    while n < power {
        let mut next = [0_u64; 12];
        let mut j = 0;
        while j < 3 {
            let limb = (x >> (32 * j)) as u32 as u64;
            let (mut i, mut carry) = (0, 0);
            while i + j < 12 {
                let sum = next[i + j] + product[i] * limb % (1 << 32) + carry % (1 << 32);
                let high = product[i] * limb / (1 << 32) + carry / (1 << 32);
                next[i + j] = sum % (1 << 32);
                carry = high + sum / (1 << 32);
                i += 1;
            }
            j += 1;
        }
        product = next;
        n += 1;
    }
    let at = 2 * power as usize;
    let mut whole = product[at] as u128 | (product[at + 1] as u128) << 32;
    let mut rest = false;
    let mut i = 0;
    while i < at { if product[i] != 0 { rest = true } i += 1; }
    if at + 2 < 12 && product[at + 2] != 0 { whole = u128::MAX }
    whole < prime || whole == prime && !rest
}
const fn primes() -> [u128; 80] {
    let (mut all, mut count, mut n) = ([0; 80], 0, 2);
    while count < 80 {
        let (mut i, mut is) = (0, true);
        while i < count { if n % all[i] == 0 { is = false; break } i += 1; }
        if is { all[count] = n; count += 1; }
        n += 1;
    }
    all
}
const K: [u64; 80] = { let (p, mut k, mut i) = (primes(), [0; 80], 0); while i < 80 { k[i] = root(p[i], 3, false); i += 1; } k };
const BEGIN: [u64; 8] = { let (p, mut h, mut i) = (primes(), [0; 8], 0); while i < 8 { h[i] = root(p[i], 2, true); i += 1; } h };
fn block(state: &mut [u64; 8], block: &[u8]) {
    let mut w: Vec<u64> = block.chunks(8).map(|c| u64::from_be_bytes(c.try_into().unwrap())).collect();
    for i in 16..80 {
        let s0 = w[i - 15].rotate_right(1) ^ w[i - 15].rotate_right(8) ^ w[i - 15] >> 7;
        let s1 = w[i - 2].rotate_right(19) ^ w[i - 2].rotate_right(61) ^ w[i - 2] >> 6;
        w.push(w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1));
    }
    let mut v = *state;
    for (k, w) in K.iter().zip(&w) {
        let [a, b, c, d, e, f, g, h] = v;
        let t1 = h.wrapping_add(e.rotate_right(14) ^ e.rotate_right(18) ^ e.rotate_right(41));
        let t1 = t1.wrapping_add(e & f ^ !e & g).wrapping_add(*k).wrapping_add(*w);
        let t2 = (a.rotate_right(28) ^ a.rotate_right(34) ^ a.rotate_right(39)).wrapping_add(a & b ^ a & c ^ b & c);
        v = [t1.wrapping_add(t2), a, b, c, d.wrapping_add(t1), e, f, g];
    }
    for (s, v) in state.iter_mut().zip(v) { *s = s.wrapping_add(v) }
}
pub fn handle(request: Request<'_>) -> Reply {
    let mut text = request.body().to_vec();
    text.push(0x80);
    text.resize((text.len() + 16).next_multiple_of(128) - 16, 0);
    text.extend((request.body().len() as u128 * 8).to_be_bytes());
    let mut state = BEGIN;
    text.chunks(128).for_each(|b| block(&mut state, b));
    Ok(state.iter().map(|w| format!("{w:016x}")).collect::<String>().into())
}

//= sha1
//? abc
//> a9993e364706816aba3e25717850c26c9cd0d89d
pub fn handle(request: Request<'_>) -> Reply {
    let mut text = request.body().to_vec();
    text.push(0x80);
    text.resize((text.len() + 8).next_multiple_of(64) - 8, 0);
    text.extend((request.body().len() as u64 * 8).to_be_bytes());
    let mut h: [u32; 5] = [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0];
    for block in text.chunks(64) {
        let mut w: Vec<u32> = block.chunks(4).map(|c| u32::from_be_bytes(c.try_into().unwrap())).collect();
        for i in 16..80 { w.push((w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16]).rotate_left(1)) }
        let [mut a, mut b, mut c, mut d, mut e] = h;
        for (i, w) in w.iter().enumerate() {
            let (f, k) = match i / 20 {
                0 => (b & c | !b & d, 0x5a827999_u32), 1 => (b ^ c ^ d, 0x6ed9eba1),
                2 => (b & c | b & d | c & d, 0x8f1bbcdc), _ => (b ^ c ^ d, 0xca62c1d6),
            };
            let t = a.rotate_left(5).wrapping_add(f).wrapping_add(e).wrapping_add(k).wrapping_add(*w);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, t);
        }
        for (h, v) in h.iter_mut().zip([a, b, c, d, e]) { *h = h.wrapping_add(v) }
    }
    Ok(h.map(|w| format!("{w:08x}")).concat().into_bytes())
}

//= md5
//? abc
//> 900150983cd24fb0d6963f7d28e17f72
/// The sines come from a series.
fn sine(x: f64) -> f64 {
    let x = x - (x / core::f64::consts::TAU) as i64 as f64 * core::f64::consts::TAU;
    let (mut term, mut sum) = (x, x);
    for n in 1..30 { term *= -x * x / ((2 * n) * (2 * n + 1)) as f64; sum += term }
    sum
}
pub fn handle(request: Request<'_>) -> Reply {
    let k: Vec<u32> = (1..=64).map(|i| (sine(f64::from(i)).abs() * 4294967296.0) as u32).collect();
    const S: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
    let mut text = request.body().to_vec();
    text.push(0x80);
    text.resize((text.len() + 8).next_multiple_of(64) - 8, 0);
    text.extend((request.body().len() as u64 * 8).to_le_bytes());
    let mut h: [u32; 4] = [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476];
    for block in text.chunks(64) {
        let m: Vec<u32> = block.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
        let [mut a, mut b, mut c, mut d] = h;
        for i in 0..64 {
            let (f, g) = match i / 16 {
                0 => (b & c | !b & d, i), 1 => (d & b | !d & c, (5 * i + 1) % 16),
                2 => (b ^ c ^ d, (3 * i + 5) % 16), _ => (c ^ (b | !d), 7 * i % 16),
            };
            let t = f.wrapping_add(a).wrapping_add(k[i]).wrapping_add(m[g]);
            (a, d, c) = (d, c, b);
            b = b.wrapping_add(t.rotate_left(S[i / 16][i % 4]));
        }
        for (h, v) in h.iter_mut().zip([a, b, c, d]) { *h = h.wrapping_add(v) }
    }
    Ok(h.iter().flat_map(|w| w.to_le_bytes()).map(|b| format!("{b:02x}")).collect::<String>().into())
}

//= small_hash_$ALG
//: ALG = fnv32 | fnv64 | djb2 | adler | murmur | sip | xx32 | jenkins
//? hello
//? a somewhat longer text of more than thirty-two bytes, for the loops
@ALG
pub fn handle(request: Request<'_>) -> Reply { Ok(format!("{:x}", hash(request.body())).into_bytes()) }
//+ fnv32
fn hash(bytes: &[u8]) -> u32 { bytes.iter().fold(0x811c9dc5, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x01000193)) }
//+ fnv64
fn hash(bytes: &[u8]) -> u64 { bytes.iter().fold(0xcbf29ce484222325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100000001b3)) }
//+ djb2
fn hash(bytes: &[u8]) -> u32 { bytes.iter().fold(5381, |h: u32, b| h.wrapping_shl(5).wrapping_add(h) ^ u32::from(*b)) }
//+ adler
fn hash(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), x| { let a = (a + u32::from(*x)) % 65521; (a, (b + a) % 65521) });
    b << 16 | a
}
//+ murmur
fn hash(bytes: &[u8]) -> u32 {
    let mix = |k: u32| k.wrapping_mul(0xcc9e2d51).rotate_left(15).wrapping_mul(0x1b873593);
    let (words, rest) = bytes.as_chunks::<4>();
    let mut h = 0x9747b28c_u32;
    for w in words { h = (h ^ mix(u32::from_le_bytes(*w))).rotate_left(13).wrapping_mul(5).wrapping_add(0xe6546b64) }
    let tail = rest.iter().rev().fold(0, |k, b| k << 8 | u32::from(*b));
    h ^= if rest.is_empty() { 0 } else { mix(tail) };
    h ^= bytes.len() as u32;
    h = (h ^ h >> 16).wrapping_mul(0x85ebca6b);
    h = (h ^ h >> 13).wrapping_mul(0xc2b2ae35);
    h ^ h >> 16
}
//+ sip
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]); v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0]; v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]); v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2]; v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}
fn hash(bytes: &[u8]) -> u64 {
    let mut v = [0x736f6d6570736575, 0x646f72616e646f6d, 0x6c7967656e657261, 0x7465646279746573];
    let mut take = |m: u64, n: u32, v: &mut [u64; 4]| { v[3] ^= m; (0..n).for_each(|_| round(v)); v[0] ^= m };
    let chunks = bytes.chunks_exact(8);
    let mut last = (bytes.len() as u64) << 56;
    for (i, b) in chunks.remainder().iter().enumerate() { last |= u64::from(*b) << (8 * i) }
    for c in chunks { take(u64::from_le_bytes(c.try_into().unwrap()), 2, &mut v) }
    take(last, 2, &mut v);
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}
//+ xx32
const P: [u32; 5] = [0x9e3779b1, 0x85ebca77, 0xc2b2ae3d, 0x27d4eb2f, 0x165667b1];
fn hash(mut bytes: &[u8]) -> u32 {
    let length = bytes.len() as u32;
    let mut h = if bytes.len() >= 16 {
        let mut v = [P[0].wrapping_add(P[1]), P[1], 0, 0_u32.wrapping_sub(P[0])];
        while let Some((lanes, rest)) = bytes.split_first_chunk::<16>() {
            for (v, lane) in v.iter_mut().zip(lanes.chunks(4)) {
                *v = v.wrapping_add(u32::from_le_bytes(lane.try_into().unwrap()).wrapping_mul(P[1])).rotate_left(13).wrapping_mul(P[0]);
            }
            bytes = rest;
        }
        v[0].rotate_left(1).wrapping_add(v[1].rotate_left(7)).wrapping_add(v[2].rotate_left(12)).wrapping_add(v[3].rotate_left(18))
    } else { P[4] };
    h = h.wrapping_add(length);
    while let Some((w, rest)) = bytes.split_first_chunk::<4>() {
        h = h.wrapping_add(u32::from_le_bytes(*w).wrapping_mul(P[2])).rotate_left(17).wrapping_mul(P[3]);
        bytes = rest;
    }
    for b in bytes { h = h.wrapping_add(u32::from(*b).wrapping_mul(P[4])).rotate_left(11).wrapping_mul(P[0]) }
    h = (h ^ h >> 15).wrapping_mul(P[1]);
    h = (h ^ h >> 13).wrapping_mul(P[2]);
    h ^ h >> 16
}
//+ jenkins
fn hash(bytes: &[u8]) -> u32 {
    let mut h = 0_u32;
    for b in bytes { h = h.wrapping_add((*b).into()); h = h.wrapping_add(h << 10); h ^= h >> 6; }
    h = h.wrapping_add(h << 3);
    h ^= h >> 11;
    h.wrapping_add(h << 15)
}

//= code_$ALG
//: ALG = hex | base64 | base32 | base58 | ascii85 | percent | rle
//: ALG = lz | lzw | huffman | bwt | leb128 | gray | quoted
//? hello hello hello world
//? \x00\x01\xfe\xffab
//? 
@ALG
pub fn handle(request: Request<'_>) -> Reply {
    let coded = encode(request.body());
    if decode(&coded).as_deref() != Some(request.body()) { return Err(Error::new(Code::Internal, "it does not come back")) }
    Ok(coded)
}
//+ hex
fn encode(b: &[u8]) -> Vec<u8> { b.iter().flat_map(|b| [b >> 4, b & 15]).map(|n| b"0123456789abcdef"[n as usize]).collect() }
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    t.chunks(2).map(|p| u8::from_str_radix(core::str::from_utf8(p).ok()?, 16).ok()).collect()
}
//+ base64
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
fn encode(b: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for c in b.chunks(3) {
        let n = c.iter().fold(0_u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - c.len()));
        for i in 0..4 { out.push(if i <= c.len() { LETTERS[(n >> (18 - 6 * i) & 63) as usize] } else { b'=' }) }
    }
    out
}
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for c in t.chunks(4) {
        let c: Vec<u32> = c.iter().filter(|b| **b != b'=').map(|b| LETTERS.iter().position(|l| l == b).map(|p| p as u32)).collect::<Option<_>>()?;
        let n = c.iter().fold(0, |n, d| n << 6 | d) << (6 * (4 - c.len()));
        out.extend(&n.to_be_bytes()[1..c.len()]);
    }
    Some(out)
}
//+ base32
fn encode(b: &[u8]) -> Vec<u8> {
    let (mut out, mut bits, mut held) = (vec![], 0_u32, 0);
    for b in b {
        (bits, held) = (bits << 8 | u32::from(*b), held + 8);
        while held >= 5 { held -= 5; out.push(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[(bits >> held & 31) as usize]) }
    }
    if held > 0 { out.push(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[(bits << (5 - held) & 31) as usize]) }
    out
}
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut bits, mut held) = (vec![], 0_u32, 0);
    for c in t {
        let d = match c { b'A'..=b'Z' => c - b'A', b'2'..=b'7' => c - b'2' + 26, _ => return None };
        (bits, held) = (bits << 5 | u32::from(d), held + 5);
        if held >= 8 { held -= 8; out.push((bits >> held) as u8) }
    }
    Some(out)
}
//+ base58
const LETTERS: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
fn change(b: &[u8], from: u32, to: u32) -> Vec<u8> {
    let zeros = b.iter().take_while(|b| **b == 0).count();
    let mut out: Vec<u8> = vec![];
    for b in b {
        let mut carry = u32::from(*b);
        for o in &mut out { carry += u32::from(*o) * from; *o = (carry % to) as u8; carry /= to; }
        while carry > 0 { out.push((carry % to) as u8); carry /= to; }
    }
    out.extend(vec![0; zeros]);
    out.reverse();
    out
}
fn encode(b: &[u8]) -> Vec<u8> { change(b, 256, 58).iter().map(|d| LETTERS[*d as usize]).collect() }
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let digits = t.iter().map(|c| LETTERS.iter().position(|l| l == c).map(|p| p as u8)).collect::<Option<Vec<_>>>()?;
    Some(change(&digits, 58, 256))
}
//+ ascii85
fn encode(b: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    for c in b.chunks(4) {
        let mut word = [0; 4];
        word[..c.len()].copy_from_slice(c);
        let mut n = u32::from_be_bytes(word);
        let mut five = [0; 5];
        for d in five.iter_mut().rev() { *d = (n % 85) as u8 + 33; n /= 85; }
        out.extend(&five[..=c.len()]);
    }
    out
}
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![];
    for c in t.chunks(5) {
        let digits = c.iter().copied().chain(core::iter::repeat(b'u')).take(5);
        let n = digits.fold(0_u32, |n, d| n.wrapping_mul(85).wrapping_add(u32::from(d - 33)));
        out.extend(&n.to_be_bytes()[..c.len() - 1]);
    }
    Some(out)
}
//+ percent
fn encode(b: &[u8]) -> Vec<u8> {
    b.iter().flat_map(|b| if b.is_ascii_alphanumeric() { vec![*b] } else { format!("%{b:02X}").into_bytes() }).collect()
}
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut rest) = (vec![], t);
    loop {
        rest = match rest {
            [] => return Some(out),
            [b'%', h, l, rest @ ..] => { out.push((char::from(*h).to_digit(16)? * 16 + char::from(*l).to_digit(16)?) as u8); rest }
            [b, rest @ ..] => { out.push(*b); rest }
        }
    }
}
//+ rle
fn encode(b: &[u8]) -> Vec<u8> { b.chunk_by(|a, b| a == b).flat_map(|run| run.chunks(255)).flat_map(|run| [run.len() as u8, run[0]]).collect() }
fn decode(t: &[u8]) -> Option<Vec<u8>> { Some(t.chunks(2).flat_map(|p| core::iter::repeat_n(p[1], p[0].into())).collect()) }
//+ lz
fn encode(b: &[u8]) -> Vec<u8> {
    let (mut at, mut out) = (0, vec![]);
    while at < b.len() {
        let (mut best, mut from) = (0, 0);
        for begin in at.saturating_sub(255)..at {
            let n = b[begin..].iter().zip(&b[at..]).take(255).take_while(|(a, b)| a == b).count();
            if n > best { (best, from) = (n, at - begin) }
        }
        if best > 3 { out.extend([1, from as u8, best as u8]); at += best } else { out.extend([0, b[at]]); at += 1 }
    }
    out
}
fn decode(mut t: &[u8]) -> Option<Vec<u8>> {
    let mut out: Vec<u8> = vec![];
    while !t.is_empty() {
        match t {
            [0, b, rest @ ..] => { out.push(*b); t = rest }
            [1, from, n, rest @ ..] => { for _ in 0..*n { out.push(*out.get(out.len().checked_sub((*from).into())?)?) } t = rest }
            _ => return None,
        }
    }
    Some(out)
}
//+ lzw
use alloc::collections::BTreeMap;
fn encode(b: &[u8]) -> Vec<u8> {
    let mut table: BTreeMap<Vec<u8>, u16> = (0..=255).map(|b| (vec![b], u16::from(b))).collect();
    let (mut word, mut out) = (vec![], vec![]);
    for b in b {
        word.push(*b);
        if !table.contains_key(&word) {
            let code = table.len() as u16;
            let last = word[..word.len() - 1].to_vec();
            out.extend(table[&last].to_be_bytes());
            table.insert(core::mem::replace(&mut word, vec![*b]), code);
        }
    }
    if !word.is_empty() { out.extend(table[&word].to_be_bytes()) }
    out
}
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let mut table: Vec<Vec<u8>> = (0..=255).map(|b| vec![b]).collect();
    let (mut out, mut last): (Vec<u8>, Vec<u8>) = (vec![], vec![]);
    for pair in t.chunks(2) {
        let code = usize::from(u16::from_be_bytes(pair.try_into().ok()?));
        let word = table.get(code).cloned().unwrap_or_else(|| { let mut w = last.clone(); w.extend(last.first()); w });
        if !last.is_empty() { last.push(word[0]); table.push(core::mem::take(&mut last)) }
        out.extend(&word);
        last = word;
    }
    Some(out)
}
//+ huffman
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
enum Tree { Leaf(u8), Fork(Box<Tree>, Box<Tree>) }
fn tree(counts: &[u8]) -> Option<Tree> {
    let mut nodes: Vec<Option<Tree>> = vec![];
    let mut heap = BinaryHeap::new();
    for (b, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) { heap.push(Reverse((u32::from(*n), nodes.len()))); nodes.push(Some(Tree::Leaf(b as u8))) }
    while let (Some(Reverse((n, a))), Some(Reverse((m, b)))) = (heap.pop(), heap.peek().copied()) {
        heap.pop();
        let fork = Tree::Fork(Box::new(nodes[a].take()?), Box::new(nodes[b].take()?));
        heap.push(Reverse((n + m, nodes.len())));
        nodes.push(Some(fork));
    }
    nodes.pop().flatten()
}
fn codes(tree: &Tree, code: &mut Vec<bool>, all: &mut [Vec<bool>]) {
    match tree {
        Tree::Leaf(b) => all[*b as usize] = code.clone(),
        Tree::Fork(a, b) => { code.push(false); codes(a, code, all); code.pop(); code.push(true); codes(b, code, all); code.pop(); }
    }
}
fn encode(b: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 257];
    b.iter().for_each(|b| out[*b as usize] += 1);
    out[256] = b.len() as u8;
    let Some(tree) = tree(&out[..256]) else { return out };
    let mut all = vec![vec![]; 256];
    codes(&tree, &mut vec![], &mut all);
    let bits: Vec<bool> = b.iter().flat_map(|b| all[*b as usize].iter().copied()).collect();
    out.extend(bits.chunks(8).map(|c| c.iter().enumerate().fold(0, |n, (i, b)| n | u8::from(*b) << i)));
    out
}
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let (counts, bits) = t.split_at_checked(257)?;
    let Some(tree) = tree(&counts[..256]) else { return Some(vec![]) };
    let mut bits = bits.iter().flat_map(|b| (0..8).map(move |i| b >> i & 1 == 1));
    let mut out = vec![];
    while out.len() < counts[256].into() {
        let mut at = &tree;
        while let Tree::Fork(a, b) = at { at = if bits.next()? { b } else { a } }
        if let Tree::Leaf(b) = at { out.push(*b) }
    }
    Some(out)
}
//+ bwt
fn encode(b: &[u8]) -> Vec<u8> {
    let mut turns: Vec<usize> = (0..b.len()).collect();
    turns.sort_by(|i, j| b[*i..].iter().chain(&b[..*i]).cmp(b[*j..].iter().chain(&b[..*j])));
    let mut out = vec![turns.iter().position(|i| *i == 0).unwrap_or(0) as u8];
    out.extend(turns.iter().map(|i| b[(i + b.len() - 1) % b.len()]));
    out
}
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let (&row, t) = t.split_first()?;
    let mut next: Vec<usize> = (0..t.len()).collect();
    next.sort_by_key(|i| t[*i]);
    let mut at = usize::from(row);
    Some((0..t.len()).map(|_| { at = next[at]; t[at] }).collect())
}
//+ leb128
fn encode(b: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    for c in b.chunks(6) {
        let mut n = c.iter().fold(c.len() as u64, |n, b| n << 8 | u64::from(*b));
        while n >= 128 { out.push(n as u8 | 128); n >>= 7 }
        out.push(n as u8);
    }
    out
}
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut n, mut shift) = (vec![], 0_u64, 0);
    for b in t {
        n |= u64::from(b & 127) << shift;
        shift += 7;
        if *b < 128 {
            let length = (1..7).find(|k| n >> (8 * k) == *k as u64)?;
            out.extend(&n.to_be_bytes()[8 - length as usize..]);
            (n, shift) = (0, 0);
        }
    }
    Some(out)
}
//+ gray
fn encode(b: &[u8]) -> Vec<u8> { let mut last = 0; b.iter().map(|b| { let d = b.wrapping_sub(last); last = *b; d ^ d >> 1 }).collect() }
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let mut last = 0_u8;
    Some(t.iter().map(|g| { let mut d = *g; d ^= d >> 4; d ^= d >> 2; d ^= d >> 1; last = last.wrapping_add(d); last }).collect())
}
//+ quoted
fn encode(b: &[u8]) -> Vec<u8> {
    let mut out = String::new();
    let mut column = 0;
    for b in b {
        let part = match b { 33..=60 | 62..=126 | 32 => char::from(*b).to_string(), b => format!("={b:02X}") };
        if column + part.len() > 20 { out += "=\r\n"; column = 0 }
        column += part.len();
        out += &part;
    }
    out.into()
}
fn decode(t: &[u8]) -> Option<Vec<u8>> {
    let text = core::str::from_utf8(t).ok()?.replace("=\r\n", "");
    let mut parts = text.split('=');
    let mut out = parts.next()?.as_bytes().to_vec();
    for part in parts { out.push(u8::from_str_radix(part.get(..2)?, 16).ok()?); out.extend(part[2..].bytes()) }
    Some(out)
}
