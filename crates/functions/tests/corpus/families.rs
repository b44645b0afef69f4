//! Functions of the corpus that come in families: each axis is another type, algorithm or form.

//= sort_$ALG_$T
//: ALG = insertion | merge | quick | heap | shell | standard
//: T = u8 | i32 | u64 | f64 | String
//? 5 3 9 1 1 200 7 42 0 13 8 77 100 2 6
//? 
#[allow(unused_imports)]
use core::cmp::Ordering;
fn key(word: &str) -> Option<$T> { word.parse().ok() }
trait Rank { fn rank(&self, other: &Self) -> Ordering; }
macro_rules! rank { ($($t:ty),*) => { $(impl Rank for $t { fn rank(&self, other: &Self) -> Ordering { self.cmp(other) } })* } }
rank!(u8, i32, u64, String);
impl Rank for f64 { fn rank(&self, other: &Self) -> Ordering { self.total_cmp(other) } }
fn less<T: Rank>(a: &T, b: &T) -> bool { a.rank(b) == Ordering::Less }
@ALG
pub fn handle(request: Request<'_>) -> Reply {
    let mut all: Vec<$T> = request.text()?.split_whitespace().filter_map(key).collect();
    sort(&mut all);
    Ok(format!("{all:?}").into_bytes())
}
//+ insertion
fn sort<T: Rank>(all: &mut [T]) {
    for i in 1..all.len() {
        let mut at = i;
        while at > 0 && less(&all[at], &all[at - 1]) { all.swap(at, at - 1); at -= 1; }
    }
}
//+ merge
fn sort<T: Rank + Clone>(all: &mut [T]) {
    if all.len() < 2 { return }
    let (a, b) = all.split_at_mut(all.len() / 2);
    sort(a);
    sort(b);
    let mut merged = Vec::with_capacity(a.len() + b.len());
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        let left = j == b.len() || (i < a.len() && !less(&b[j], &a[i]));
        if left { merged.push(a[i].clone()); i += 1 } else { merged.push(b[j].clone()); j += 1 }
    }
    all.clone_from_slice(&merged);
}
//+ quick
fn sort<T: Rank>(all: &mut [T]) {
    if all.len() < 2 { return }
    let last = all.len() - 1;
    all.swap(last / 2, last);
    let mut store = 0;
    for i in 0..last {
        if less(&all[i], &all[last]) { all.swap(i, store); store += 1; }
    }
    all.swap(store, last);
    let (a, b) = all.split_at_mut(store);
    sort(a);
    sort(&mut b[1..]);
}
//+ heap
fn sift<T: Rank>(all: &mut [T], mut at: usize) {
    loop {
        let mut child = 2 * at + 1;
        if child >= all.len() { return }
        if child + 1 < all.len() && less(&all[child], &all[child + 1]) { child += 1; }
        if !less(&all[at], &all[child]) { return }
        all.swap(at, child);
        at = child;
    }
}
fn sort<T: Rank>(all: &mut [T]) {
    for at in (0..all.len() / 2).rev() { sift(all, at) }
    for end in (1..all.len()).rev() { all.swap(0, end); sift(&mut all[..end], 0) }
}
//+ shell
fn sort<T: Rank>(all: &mut [T]) {
    for gap in [57, 23, 10, 4, 1] {
        for i in gap..all.len() {
            let mut at = i;
            while at >= gap && less(&all[at], &all[at - gap]) { all.swap(at, at - gap); at -= gap; }
        }
    }
}
//+ standard
fn sort<T: Rank + Clone>(all: &mut Vec<T>) {
    let mut other = all.clone();
    all.sort_by(|a, b| a.rank(b));
    other.sort_unstable_by(|a, b| b.rank(a));
    other.reverse();
    assert!(all.iter().zip(&other).all(|(a, b)| a.rank(b).is_eq()));
}

//= crc_$BITS_$WAY
//: BITS = 8 | 16 | 32 | 64
//: WAY = table | bitwise
//? 123456789
//? The quick brown fox
@BITS
@WAY
pub fn handle(request: Request<'_>) -> Reply {
    Ok(format!("{:x}", crc(request.body()) ^ XOR).into_bytes())
}
//+ 8
type Word = u8;
const POLYNOMIAL: Word = 0xe0;
const BEGIN: Word = 0;
const XOR: Word = 0x55;
//+ 16
type Word = u16;
const POLYNOMIAL: Word = 0x8408;
const BEGIN: Word = 0xffff;
const XOR: Word = 0xffff;
//+ 32
type Word = u32;
const POLYNOMIAL: Word = 0xedb8_8320;
const BEGIN: Word = 0xffff_ffff;
const XOR: Word = 0xffff_ffff;
//+ 64
type Word = u64;
const POLYNOMIAL: Word = 0xc96c_5795_d787_0f42;
const BEGIN: Word = !0;
const XOR: Word = !0;
//+ table
const TABLE: [Word; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut word = n as Word;
        let mut bit = 0;
        while bit < 8 { word = if word & 1 == 1 { word >> 1 ^ POLYNOMIAL } else { word >> 1 }; bit += 1; }
        table[n] = word;
        n += 1;
    }
    table
};
fn crc(bytes: &[u8]) -> Word {
    bytes.iter().fold(BEGIN, |crc, b| TABLE[usize::from(crc as u8 ^ b)] ^ crc.checked_shr(8).unwrap_or(0))
}
//+ bitwise
fn crc(bytes: &[u8]) -> Word {
    let mut crc = BEGIN;
    for b in bytes {
        crc ^= Word::from(*b);
        for _ in 0..8 { crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 }; }
    }
    crc
}

//= matrix_$OP_$F
//: OP = multiply | power | determinant | transpose | inverse
//: F = f64 | modular | fraction
//? 1 2 3 0 1 4 5 6 0
//? 2 0 0 0 3 0 0 0 4
//? 1 2
use core::ops::{Add, Mul, Sub};
@F
const N: usize = 3;
type Matrix = [[F; N]; N];
#[allow(dead_code)]
fn identity() -> Matrix { core::array::from_fn(|i| core::array::from_fn(|j| F::new(i64::from(i == j)))) }
#[allow(dead_code)]
fn times(a: &Matrix, b: &Matrix) -> Matrix {
    core::array::from_fn(|i| core::array::from_fn(|j| (0..N).fold(F::new(0), |sum, k| sum + a[i][k] * b[k][j])))
}
@OP
pub fn handle(request: Request<'_>) -> Reply {
    let numbers: Vec<F> = request.text()?.split(' ').filter_map(|w| w.parse().ok()).map(F::new).collect();
    let rows: Vec<[F; N]> = numbers.chunks_exact(N).map(|c| [c[0], c[1], c[2]]).collect();
    let matrix: Matrix = rows.try_into().map_err(|_| Error::invalid("nine numbers"))?;
    Ok(result(&matrix).into_bytes())
}
//+ f64
#[derive(Debug, Clone, Copy, PartialEq)]
struct F(f64);
#[allow(dead_code)]
impl F {
    fn new(n: i64) -> Self { Self(n as f64) }
    fn inverse(self) -> Option<Self> { (self.0.abs() > 1e-12).then(|| Self(1.0 / self.0)) }
}
impl Add for F { type Output = F; fn add(self, o: F) -> F { F(self.0 + o.0) } }
impl Sub for F { type Output = F; fn sub(self, o: F) -> F { F(self.0 - o.0) } }
impl Mul for F { type Output = F; fn mul(self, o: F) -> F { F(self.0 * o.0) } }
//+ modular
const P: u64 = 0xffff_fffb;
#[derive(Debug, Clone, Copy, PartialEq)]
struct F(u64);
#[allow(dead_code)]
impl F {
    fn new(n: i64) -> Self { Self(n.rem_euclid(P as i64) as u64) }
    fn inverse(self) -> Option<Self> {
        let (mut base, mut exponent, mut value) = (self, P - 2, F(1));
        while exponent > 0 { if exponent & 1 == 1 { value = value * base } base = base * base; exponent >>= 1; }
        (self.0 != 0).then_some(value)
    }
}
impl Add for F { type Output = F; fn add(self, o: F) -> F { F((self.0 + o.0) % P) } }
impl Sub for F { type Output = F; fn sub(self, o: F) -> F { F((self.0 + P - o.0) % P) } }
impl Mul for F { type Output = F; fn mul(self, o: F) -> F { F((u128::from(self.0) * u128::from(o.0) % u128::from(P)) as u64) } }
//+ fraction
#[derive(Debug, Clone, Copy, PartialEq)]
struct F(i128, i128);
fn gcd(a: i128, b: i128) -> i128 { if b == 0 { a.abs() } else { gcd(b, a % b) } }
#[allow(dead_code)]
impl F {
    fn new(n: i64) -> Self { Self(n.into(), 1) }
    fn short(a: i128, b: i128) -> Self { let g = gcd(a, b).max(1) * b.signum(); Self(a / g, b / g) }
    fn inverse(self) -> Option<Self> { (self.0 != 0).then(|| Self::short(self.1, self.0)) }
}
impl Add for F { type Output = F; fn add(self, o: F) -> F { F::short(self.0 * o.1 + o.0 * self.1, self.1 * o.1) } }
impl Sub for F { type Output = F; fn sub(self, o: F) -> F { F::short(self.0 * o.1 - o.0 * self.1, self.1 * o.1) } }
impl Mul for F { type Output = F; fn mul(self, o: F) -> F { F::short(self.0 * o.0, self.1 * o.1) } }
//+ multiply
fn result(m: &Matrix) -> String { format!("{:?}", times(m, &times(m, m))) }
//+ power
fn result(m: &Matrix) -> String {
    let (mut base, mut exponent, mut value) = (*m, 13_u32, identity());
    while exponent > 0 { if exponent & 1 == 1 { value = times(&value, &base) } base = times(&base, &base); exponent >>= 1; }
    format!("{value:?}")
}
//+ determinant
fn minor(m: &Matrix, row: usize, column: usize) -> F {
    let (r, c): (Vec<_>, Vec<_>) = ((0..N).filter(|i| *i != row).collect(), (0..N).filter(|i| *i != column).collect());
    m[r[0]][c[0]] * m[r[1]][c[1]] - m[r[0]][c[1]] * m[r[1]][c[0]]
}
fn result(m: &Matrix) -> String {
    let term = |j| { let t = m[0][j] * minor(m, 0, j); if j % 2 == 0 { t } else { F::new(0) - t } };
    format!("{:?}", (0..N).map(term).fold(F::new(0), |a, b| a + b))
}
//+ transpose
fn result(m: &Matrix) -> String {
    let t: Matrix = core::array::from_fn(|i| core::array::from_fn(|j| m[j][i]));
    let trace = (0..N).fold(F::new(0), |sum, i| sum + t[i][i]);
    format!("{t:?} {trace:?} {}", t == *m)
}
//+ inverse
fn result(m: &Matrix) -> String {
    let (mut a, mut b) = (*m, identity());
    for column in 0..N {
        let Some((row, inverse)) = (column..N).find_map(|r| Some((r, a[r][column].inverse()?))) else { return "singular".into() };
        a.swap(row, column);
        b.swap(row, column);
        for j in 0..N { a[column][j] = a[column][j] * inverse; b[column][j] = b[column][j] * inverse; }
        for i in (0..N).filter(|i| *i != column) {
            let by = a[i][column];
            for j in 0..N { a[i][j] = a[i][j] - by * a[column][j]; b[i][j] = b[i][j] - by * b[column][j]; }
        }
    }
    format!("{b:?}")
}

//= format_$T
//: T = u8 | i16 | u32 | i64 | u128 | f32 | f64 | char
//? 0 1 -1 7 100 65535 -32768 1.5 x 340282366920938463463374607431768211455 1e10 0.1
fn show(value: $T) -> String { @T }
pub fn handle(request: Request<'_>) -> Reply {
    Ok(request.text()?.split(' ').filter_map(|w| w.parse().ok()).map(show).collect::<Vec<_>>().join("|").into_bytes())
}
//+ u8
format!("{value} {value:03} {value:#04x} {value:08b} {value:o} {:?}", value.checked_add(200))
//+ i16
format!("{value:+} {value:>8} {value:<8}. {value:^8} {value:x} {}", value.wrapping_mul(3))
//+ u32
format!("{value:e} {value:#b} {value:>+12} {:?} {}", value.checked_ilog10(), value.leading_zeros())
//+ i64
format!("{value:X} {value:*^24} {:?} {}", value.checked_pow(5), value.rotate_left(17))
//+ u128
format!("{value} {value:#x} {value:o} {} {}", value / 1_000_000_007, value % 998_244_353)
//+ f32
format!("{value} {value:.3} {value:e} {value:?} {:?} {}", value.to_bits(), value as i32)
//+ f64
format!("{value} {value:10.2} {value:E} {value:?} {:?} {:.0} {}", value.classify(), value * 2.5, value as u64)
//+ char
format!("{value} {value:?} {} {:?} {:?}", value.is_alphabetic(), value.to_digit(16), value.to_uppercase())

//= gcd_$WAY_$T
//: WAY = euclid | binary
//: T = u16 | u64 | u128
//? 48 36
//? 1071 462
//? 0 5
//? 65521 65519
@WAY
pub fn handle(request: Request<'_>) -> Reply {
    let all: Vec<$T> = request.text()?.split(' ').filter_map(|w| w.parse().ok()).collect();
    let [a, b] = all[..] else { return Err(Error::invalid("two numbers")) };
    let g = gcd(a, b);
    Ok(format!("{g} {:?}", a.checked_div(g).and_then(|n| n.checked_mul(b))).into_bytes())
}
//+ euclid
fn gcd(a: $T, b: $T) -> $T { if b == 0 { a } else { gcd(b, a % b) } }
//+ binary
fn gcd(mut a: $T, mut b: $T) -> $T {
    if a == 0 || b == 0 { return a | b }
    let shift = (a | b).trailing_zeros();
    a >>= a.trailing_zeros();
    loop {
        b >>= b.trailing_zeros();
        if a > b { core::mem::swap(&mut a, &mut b) }
        b -= a;
        if b == 0 { return a << shift }
    }
}

//= big_$OP_$L
//: OP = factorial | fibonacci | square_root | binomial
//: L = u8 | u32 | u64
//? 25
//? 90
//? 0
/// Natural numbers as limbs, the lowest first.
type Wide = @L;
const BITS: u32 = <$L>::BITS;
#[derive(Clone, PartialEq, Eq)]
struct Big(Vec<$L>);
#[allow(dead_code)]
impl Big {
    fn of(mut n: u64) -> Self {
        let mut limbs = vec![];
        while n != 0 { limbs.push(n as $L); n = n.checked_shr(BITS).unwrap_or(0); }
        Self(limbs)
    }
    fn trim(mut self) -> Self { while self.0.last() == Some(&0) { self.0.pop(); } self }
    fn add(&self, other: &Self) -> Self {
        let (mut carry, mut out) = (0, vec![]);
        for i in 0..self.0.len().max(other.0.len()) {
            let sum = carry + Wide::from(self.0.get(i).copied().unwrap_or(0)) + Wide::from(other.0.get(i).copied().unwrap_or(0));
            out.push(sum as $L);
            carry = sum >> BITS;
        }
        out.push(carry as $L);
        Self(out).trim()
    }
    fn mul(&self, other: &Self) -> Self {
        let mut out = vec![0; self.0.len() + other.0.len()];
        for (i, a) in self.0.iter().enumerate() {
            let mut carry: Wide = 0;
            for (j, b) in other.0.iter().enumerate() {
                let sum = Wide::from(*a) * Wide::from(*b) + Wide::from(out[i + j]) + carry;
                out[i + j] = sum as $L;
                carry = sum >> BITS;
            }
            out[i + other.0.len()] = carry as $L;
        }
        Self(out).trim()
    }
    fn div(&self, by: $L) -> (Self, $L) {
        let (mut rest, mut out) = (0 as Wide, vec![0; self.0.len()]);
        for (i, limb) in self.0.iter().enumerate().rev() {
            let n = rest << BITS | Wide::from(*limb);
            out[i] = (n / Wide::from(by)) as $L;
            rest = n % Wide::from(by);
        }
        (Self(out).trim(), rest as $L)
    }
    fn less(&self, other: &Self) -> bool { (self.0.len(), self.0.iter().rev().collect::<Vec<_>>()) < (other.0.len(), other.0.iter().rev().collect()) }
    fn text(&self) -> String {
        let (mut n, mut digits) = (self.clone(), vec![]);
        while !n.0.is_empty() { let (q, r) = n.div(10); digits.push(b'0' + r as u8); n = q; }
        if digits.is_empty() { return "0".into() }
        digits.iter().rev().map(|d| char::from(*d)).collect()
    }
}
@OP
pub fn handle(request: Request<'_>) -> Reply {
    let n = request.text()?.parse().map_err(|_| Error::invalid("a number"))?;
    Ok(result(n).text().into_bytes())
}
//+ u8
u16
//+ u32
u64
//+ u64
u128
//+ factorial
fn result(n: u64) -> Big { (1..=n).fold(Big::of(1), |p, k| p.mul(&Big::of(k))) }
//+ fibonacci
fn result(n: u64) -> Big { (0..n).fold((Big::of(0), Big::of(1)), |(a, b), _| { let c = a.add(&b); (b, c) }).0 }
//+ square_root
fn result(n: u64) -> Big {
    let goal = Big::of(n).mul(&(0..18).fold(Big::of(1), |p, _| p.mul(&Big::of(10))));
    let (mut low, mut high) = (Big::of(0), goal.add(&Big::of(1)));
    loop {
        let middle = low.add(&high).div(2).0;
        if middle == low { return low }
        if goal.less(&middle.mul(&middle)) { high = middle } else { low = middle }
    }
}
//+ binomial
fn result(n: u64) -> Big { let k = n / 3; (1..=k).fold(Big::of(1), |p, i| p.mul(&Big::of(n - k + i)).div(i as _).0) }

//= ring_$T_$SIZE
//: T = u8 | (i32, bool) | String
//: SIZE = 4 | 64
//? 1 2 3 4 5 6 7 8 9
/// A ring of const size, full or not.
struct Ring<T, const N: usize> { slots: [Option<T>; N], begin: usize, length: usize }
impl<T, const N: usize> Ring<T, N> {
    fn new() -> Self { Self { slots: [const { None }; N], begin: 0, length: 0 } }
    fn push(&mut self, item: T) -> Option<T> {
        let at = (self.begin + self.length) % N;
        if self.length == N { self.begin = (self.begin + 1) % N } else { self.length += 1 }
        self.slots[at].replace(item)
    }
    fn iter(&self) -> impl Iterator<Item = &T> { (0..self.length).filter_map(|i| self.slots[(self.begin + i) % N].as_ref()) }
}
trait Item: core::fmt::Debug { fn of(word: &str) -> Self; }
impl Item for u8 { fn of(word: &str) -> Self { word.len() as u8 * 10 + word.as_bytes()[0] } }
impl Item for (i32, bool) { fn of(word: &str) -> Self { (-word.parse().unwrap_or(7), word.len() == 1) } }
impl Item for String { fn of(word: &str) -> Self { word.repeat(2) } }
pub fn handle(request: Request<'_>) -> Reply {
    let mut ring: Ring<$T, $SIZE> = Ring::new();
    let lost: Vec<_> = request.text()?.split(' ').filter(|w| !w.is_empty()).filter_map(|w| ring.push(Item::of(w))).collect();
    Ok(format!("{:?} lost {lost:?}", ring.iter().collect::<Vec<_>>()).into_bytes())
}

//= random_numbers_$ALG
//: ALG = xorshift | pcg | splitmix | mersenne | lehmer | chacha
//? 7
//? 123456789
@ALG
pub fn handle(request: Request<'_>) -> Reply {
    let seed = request.text()?.parse().map_err(|_| Error::invalid("a seed"))?;
    let mut source = Source::new(seed);
    Ok((0..12).map(|_| format!("{:x} ", source.next())).collect::<String>().into_bytes())
}
//+ xorshift
struct Source([u64; 2]);
impl Source {
    fn new(seed: u64) -> Self { Self([seed | 1, !seed]) }
    fn next(&mut self) -> u64 {
        let [mut a, b] = self.0;
        a ^= a << 23;
        self.0 = [b, a ^ b ^ a >> 17 ^ b >> 26];
        self.0[1].wrapping_add(b)
    }
}
//+ pcg
struct Source(u64);
impl Source {
    fn new(seed: u64) -> Self { let mut new = Self(seed.wrapping_add(1442695040888963407)); new.next(); new }
    fn next(&mut self) -> u32 {
        let old = self.0;
        self.0 = old.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (((old >> 18 ^ old) >> 27) as u32).rotate_right((old >> 59) as u32)
    }
}
//+ splitmix
struct Source(u64);
impl Source {
    fn new(seed: u64) -> Self { Self(seed) }
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d049bb133111eb);
        x ^ x >> 31
    }
}
//+ mersenne
struct Source { state: Vec<u32>, at: usize }
impl Source {
    fn new(seed: u64) -> Self {
        let mut state = vec![seed as u32];
        for n in 1..624_u32 { let last = state[n as usize - 1]; state.push(0x6c078965_u32.wrapping_mul(last ^ last >> 30).wrapping_add(n)) }
        Self { state, at: 624 }
    }
    fn next(&mut self) -> u32 {
        if self.at == 624 {
            for i in 0..624 {
                let y = self.state[i] & 0x80000000 | self.state[(i + 1) % 624] & 0x7fffffff;
                self.state[i] = self.state[(i + 397) % 624] ^ y >> 1 ^ if y & 1 == 1 { 0x9908b0df } else { 0 };
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c5680;
        y ^= y << 15 & 0xefc60000;
        y ^ y >> 18
    }
}
//+ lehmer
struct Source(u128);
impl Source {
    fn new(seed: u64) -> Self { Self(u128::from(seed) << 1 | 1) }
    fn next(&mut self) -> u64 { self.0 = self.0.wrapping_mul(0xda942042e4dd58b5); (self.0 >> 64) as u64 }
}
//+ chacha
struct Source { key: [u32; 8], count: u32, block: [u32; 16], at: usize }
impl Source {
    fn new(seed: u64) -> Self { Self { key: core::array::from_fn(|n| (seed >> (8 * n)) as u32), count: 0, block: [0; 16], at: 16 } }
    fn next(&mut self) -> u32 {
        if self.at == 16 {
            let mut s = [0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, 0, 0, 0, 0, 0, 0, 0, 0, self.count, 0, 0, 0];
            s[4..12].copy_from_slice(&self.key);
            let begin = s;
            for _ in 0..10 {
                for q in [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]] {
                    let [a, b, c, d] = q;
                    for (x, y, z, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
                        s[x] = s[x].wrapping_add(s[y]);
                        s[z] = (s[z] ^ s[x]).rotate_left(by);
                    }
                }
            }
            self.block = core::array::from_fn(|n| s[n].wrapping_add(begin[n]));
            (self.count, self.at) = (self.count + 1, 0);
        }
        self.at += 1;
        self.block[self.at - 1]
    }
}

//= heap_of_$T
//: T = Reverse<u32> | (u8, String) | Job
//? 5:ant 1:bee 9:cat 5:dog 2:eel
#[allow(unused_imports)]
use alloc::collections::BinaryHeap;
#[allow(unused_imports)]
use core::cmp::{Ordering, Reverse};
#[derive(Debug, PartialEq, Eq)]
struct Job { due: u32, name: String }
impl Ord for Job { fn cmp(&self, o: &Self) -> Ordering { o.due.cmp(&self.due).then_with(|| self.name.cmp(&o.name)) } }
impl PartialOrd for Job { fn partial_cmp(&self, o: &Self) -> Option<Ordering> { Some(self.cmp(o)) } }
trait Of { fn of(n: u32, name: &str) -> Self; }
impl Of for Reverse<u32> { fn of(n: u32, name: &str) -> Self { Reverse(n * 10 + name.len() as u32) } }
impl Of for (u8, String) { fn of(n: u32, name: &str) -> Self { (n as u8, name.to_uppercase()) } }
impl Of for Job { fn of(due: u32, name: &str) -> Self { Job { due, name: name.into() } } }
pub fn handle(request: Request<'_>) -> Reply {
    let mut heap: BinaryHeap<$T> = BinaryHeap::new();
    for word in request.text()?.split(' ') {
        let (n, name) = word.split_once(':').ok_or("number:name")?;
        heap.push(Of::of(n.parse().map_err(|_| "a number")?, name));
    }
    let first = heap.peek().map(|top| format!("{top:?}"));
    let mut out = vec![first.unwrap_or_default()];
    while let Some(top) = heap.pop() { out.push(format!("{top:?}")) }
    Ok(out.join(" ").into_bytes())
}
