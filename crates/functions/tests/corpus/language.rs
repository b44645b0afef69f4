//! Functions of the corpus that use what the language has: traits, closures, statics, modules, dates.

//= dates_$WHAT
//: WHAT = weekday | iso_week | add_months | easter | difference | calendar | unix
//? 2024-02-29
//? 1999-12-31
//? 2023-02-29
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Date { year: i32, month: u8, day: u8 }
const fn is_leap(year: i32) -> bool { year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) }
const fn days_of(year: i32, month: u8) -> u8 {
    match month { 4 | 6 | 9 | 11 => 30, 2 if is_leap(year) => 29, 2 => 28, _ => 31 }
}
#[allow(dead_code)]
impl Date {
    /// Days since 1970-01-01.
    fn days(self) -> i64 {
        let y = i64::from(self.year) - i64::from(self.month <= 2);
        let (era, m) = (y.div_euclid(400), i64::from(self.month) + if self.month > 2 { -3 } else { 9 });
        let year = y.rem_euclid(400);
        era * 146097 + year * 365 + year / 4 - year / 100 + (153 * m + 2) / 5 + i64::from(self.day) - 1 - 719468
    }
    fn of(days: i64) -> Self {
        let z = days + 719468;
        let (era, day) = (z.div_euclid(146097), z.rem_euclid(146097));
        let year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let m = (5 * day + 2) / 153;
        let month = if m < 10 { m + 3 } else { m - 9 };
        Self { year: (year + era * 400 + i64::from(month <= 2)) as i32, month: month as u8, day: (day - (153 * m + 2) / 5 + 1) as u8 }
    }
    fn weekday(self) -> usize { (self.days() + 3).rem_euclid(7) as usize }
}
impl core::fmt::Display for Date {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day) }
}
impl core::str::FromStr for Date {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || Error::invalid(format!("`{text}` is no date"));
        let [y, m, d] = text.split('-').collect::<Vec<_>>()[..] else { return Err(bad()) };
        let (Ok(year), Ok(month), Ok(day)) = (y.parse(), m.parse(), d.parse()) else { return Err(bad()) };
        if (1..=12).contains(&month) && day >= 1 && day <= days_of(year, month) { Ok(Self { year, month, day }) } else { Err(bad()) }
    }
}
@WHAT
pub fn handle(request: Request<'_>) -> Reply {
    let date: Date = request.text()?.trim().parse()?;
    debug_assert_eq!(Date::of(date.days()), date);
    Ok(answer(date).into_bytes())
}
//+ weekday
const NAMES: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
fn answer(date: Date) -> String { format!("{date} is a {}", NAMES[date.weekday()]) }
//+ iso_week
fn answer(date: Date) -> String {
    let thursday = Date::of(date.days() - date.weekday() as i64 + 3);
    let first = Date { month: 1, day: 1, ..thursday };
    format!("{}-W{:02}-{}", thursday.year, (thursday.days() - first.days()) / 7 + 1, date.weekday() + 1)
}
//+ add_months
fn answer(date: Date) -> String {
    let add = |n: i32| {
        let months = date.year * 12 + i32::from(date.month) - 1 + n;
        let (year, month) = (months.div_euclid(12), months.rem_euclid(12) as u8 + 1);
        Date { year, month, day: date.day.min(days_of(year, month)) }
    };
    [-13, -1, 1, 2, 12, 100].map(|n| add(n).to_string()).join(" ")
}
//+ easter
fn answer(date: Date) -> String {
    let y = date.year;
    let (a, b, c) = (y % 19, y / 100, y % 100);
    let h = (19 * a + b - b / 4 - (b - (b + 8) / 25 + 1) / 3 + 15) % 30;
    let l = (32 + 2 * (b % 4) + 2 * (c / 4) - h - c % 4) % 7;
    let n = h + l - 7 * ((a + 11 * h + 22 * l) / 451) + 114;
    let easter = Date { year: y, month: (n / 31) as u8, day: (n % 31 + 1) as u8 };
    format!("{easter} {}", if date < easter { "before" } else { "after" })
}
//+ difference
fn answer(date: Date) -> String {
    let other = Date { year: 2000, month: 1, day: 1 };
    let (a, b) = if date < other { (date, other) } else { (other, date) };
    let mut months = (b.year - a.year) * 12 + i32::from(b.month) - i32::from(a.month);
    if b.day < a.day { months -= 1 }
    format!("{} days, {} years {} months", b.days() - a.days(), months / 12, months % 12)
}
//+ calendar
fn answer(date: Date) -> String {
    let mut out = format!("{:^20}\nMo Tu We Th Fr Sa Su\n", format!("{:02}/{}", date.month, date.year));
    let begin = Date { day: 1, ..date }.weekday();
    out += &"   ".repeat(begin);
    for day in 1..=days_of(date.year, date.month) {
        out += &format!("{day:>2}{}", if (begin + usize::from(day)) % 7 == 0 { '\n' } else { ' ' });
    }
    out
}
//+ unix
fn answer(date: Date) -> String {
    let seconds = date.days() * 86400 + 12345;
    let (day, time) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    format!("{}T{:02}:{:02}:{:02}Z {seconds}", Date::of(day), time / 3600, time / 60 % 60, time % 60)
}

//= dynamic_shapes
//? circle 2 square 3 blob 1 circle 0.5
trait Shape { fn area(&self) -> f64; fn name(&self) -> String { "shape".into() } }
struct Circle(f64);
struct Square(f64);
impl Shape for Circle { fn area(&self) -> f64 { core::f64::consts::PI * self.0 * self.0 } fn name(&self) -> String { format!("circle of {}", self.0) } }
impl Shape for Square { fn area(&self) -> f64 { self.0 * self.0 } }
pub fn handle(request: Request<'_>) -> Reply {
    let words: Vec<_> = request.text()?.split(' ').collect();
    let make = |pair: &[&str]| -> Option<Box<dyn Shape>> {
        let size = pair[1].parse().ok()?;
        match pair[0] { "circle" => Some(Box::new(Circle(size))), "square" => Some(Box::new(Square(size))), _ => None }
    };
    let mut shapes: Vec<Box<dyn Shape>> = words.chunks_exact(2).filter_map(make).collect();
    shapes.sort_by(|a, b| a.area().total_cmp(&b.area()));
    Ok(shapes.iter().map(|s| format!("{}: {:.3}\n", s.name(), s.area())).collect::<String>().into_bytes())
}

//= closures
//? 1 2 3 4 5 6
fn compose<A, B, C>(f: impl Fn(A) -> B, g: impl Fn(B) -> C) -> impl Fn(A) -> C { move |x| g(f(x)) }
pub fn handle(request: Request<'_>) -> Reply {
    let numbers: Vec<i64> = request.text()?.split(' ').filter_map(|w| w.parse().ok()).collect();
    let mut calls = 0;
    let steps: [(&str, Box<dyn Fn(i64) -> i64>); 3] =
        [("double", Box::new(|x| x * 2)), ("square", Box::new(compose(|x: i64| x * x, |x| x + 1))), ("negate", Box::new(|x| -x))];
    let mut apply = |f: &dyn Fn(i64) -> i64, x| { calls += 1; f(x) };
    let mut out = String::new();
    for (name, f) in &steps { out += &format!("{name}: {:?}\n", numbers.iter().map(|x| apply(f, *x)).collect::<Vec<_>>()) }
    Ok(format!("{out}{calls} calls").into_bytes())
}

//= iterators
//? 10
struct Collatz(u64);
impl Iterator for Collatz {
    type Item = u64;
    fn next(&mut self) -> Option<u64> {
        let now = self.0;
        self.0 = match now { 0 => return None, 1 => 0, n if n % 2 == 0 => n / 2, n => 3 * n + 1 };
        Some(now)
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let n: u64 = request.text()?.parse().map_err(|_| Error::invalid("a number"))?;
    let longest = (1..=n * 10).max_by_key(|n| Collatz(*n).count());
    let (even, odd): (Vec<u64>, Vec<u64>) = Collatz(n).partition(|n| n % 2 == 0);
    let sums: Vec<u64> = Collatz(n).scan(0, |sum, n| { *sum += n; Some(*sum) }).collect();
    let zipped: Vec<_> = even.iter().zip(odd.iter().rev()).skip(1).step_by(2).collect();
    let peaks = Collatz(27).collect::<Vec<_>>().windows(3).filter(|w| w[0] < w[1] && w[1] > w[2]).count();
    Ok(format!("{longest:?} {even:?} {odd:?} {sums:?} {zipped:?} {peaks}").into_bytes())
}

//= statics
//? a
//? bcd
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
static CALLS: AtomicUsize = AtomicUsize::new(40);
static SUM: AtomicU64 = AtomicU64::new(0);
static SEEN: [AtomicBool; 256] = [const { AtomicBool::new(false) }; 256];
pub fn handle(request: Request<'_>) -> Reply {
    CALLS.fetch_add(1, Ordering::SeqCst);
    for b in request.body() {
        SUM.fetch_add(u64::from(*b), Ordering::Relaxed);
        SEEN[*b as usize].store(true, Ordering::Release);
    }
    let seen = SEEN.iter().filter(|s| s.load(Ordering::Acquire)).count();
    let (calls, sum) = (CALLS.load(Ordering::SeqCst), SUM.load(Ordering::Relaxed));
    // Each call begins with what the source says.
    CALLS.store(40, Ordering::SeqCst);
    SUM.store(0, Ordering::SeqCst);
    SEEN.iter().for_each(|s| s.store(false, Ordering::SeqCst));
    Ok(format!("{calls} {sum} {seen}").into_bytes())
}

//= static_names
//? 2
use core::sync::atomic::{AtomicU8, Ordering};
static TABLE: [(&str, fn(u32) -> u32, AtomicU8); 3] =
    [("next", |n| n + 1, AtomicU8::new(3)), ("square", |n| n * n, AtomicU8::new(2)), ("bits", u32::count_ones, AtomicU8::new(1))];
pub fn handle(request: Request<'_>) -> Reply {
    let n = request.text()?.parse().map_err(|_| Error::invalid("a number"))?;
    let row = |(name, f, times): &(&str, fn(u32) -> u32, AtomicU8)| {
        let value = (0..times.load(Ordering::Relaxed)).fold(n, |n, _| f(n));
        format!("{name}={value} ")
    };
    Ok(TABLE.iter().map(row).collect::<String>().into_bytes())
}

//= shared_tree
//? m c x a d
use alloc::rc::{Rc, Weak};
use core::cell::{Cell, RefCell};
#[derive(Default)]
struct Node { name: String, parent: RefCell<Weak<Node>>, children: RefCell<Vec<Rc<Node>>>, visits: Cell<u32> }
fn depth(node: &Rc<Node>) -> usize {
    node.visits.set(node.visits.get() + 1);
    node.parent.borrow().upgrade().map_or(0, |p| depth(&p) + 1)
}
pub fn handle(request: Request<'_>) -> Reply {
    let root = Rc::new(Node { name: "root".into(), ..Node::default() });
    let (mut last, mut all) = (root.clone(), vec![root.clone()]);
    for (n, name) in request.text()?.split(' ').enumerate() {
        let node = Rc::new(Node { name: name.into(), ..Node::default() });
        *node.parent.borrow_mut() = Rc::downgrade(&last);
        last.children.borrow_mut().push(node.clone());
        if n % 2 == 0 { last = node.clone() }
        all.push(node);
    }
    let depths: Vec<_> = all.iter().map(|n| (n.name.as_str(), depth(n), n.children.borrow().len())).collect();
    Ok(format!("{depths:?} {} {}", root.visits.get(), Rc::strong_count(&last)).into_bytes())
}

//= linked_list
//? 3 1 2
#[derive(Debug)]
enum List<T> { End, Item(T, Box<List<T>>) }
impl<T: PartialOrd + Copy> List<T> {
    fn insert(self, new: T) -> Self {
        match self { List::Item(first, rest) if first < new => List::Item(first, Box::new(rest.insert(new))), rest => List::Item(new, Box::new(rest)) }
    }
    fn reverse(self) -> Self {
        let (mut from, mut to) = (self, List::End);
        while let List::Item(first, rest) = from { (from, to) = (*rest, List::Item(first, Box::new(to))) }
        to
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let list = request.text()?.split(' ').filter_map(|w| w.parse::<f32>().ok()).fold(List::End, List::insert);
    Ok(format!("{:?}", list.reverse()).into_bytes())
}

//= trie
//? car card care cat dog|ca
use alloc::collections::BTreeMap;
#[derive(Default)]
struct Trie { ends: bool, next: BTreeMap<char, Trie> }
impl Trie {
    fn add(&mut self, word: &str) { word.chars().fold(self, |at, c| at.next.entry(c).or_default()).ends = true }
    fn below(&self, prefix: &str, out: &mut Vec<String>) {
        if self.ends { out.push(prefix.into()) }
        for (c, trie) in &self.next { trie.below(&format!("{prefix}{c}"), out) }
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let (words, prefix) = request.text()?.split_once('|').ok_or("words|prefix")?;
    let mut trie = Trie::default();
    words.split(' ').for_each(|w| trie.add(w));
    let mut found = vec![];
    let below = prefix.chars().try_fold(&trie, |at, c| at.next.get(&c)).ok_or(Error::new(Code::NotFound, prefix))?;
    below.below(prefix, &mut found);
    Ok(found.join(" ").into_bytes())
}

//= cache
//? get a put a 1 put b 2 get a put c 3 get b
use alloc::collections::{BTreeMap, VecDeque};
struct Cache<K, V> { most: usize, items: BTreeMap<K, V>, order: VecDeque<K> }
impl<K: Ord + Clone, V> Cache<K, V> {
    fn touch(&mut self, key: &K) { self.order.retain(|k| k != key); self.order.push_back(key.clone()) }
    fn get(&mut self, key: &K) -> Option<&V> { if self.items.contains_key(key) { self.touch(key) } self.items.get(key) }
    fn put(&mut self, key: K, value: V) {
        self.touch(&key);
        self.items.insert(key, value);
        if self.items.len() > self.most && let Some(old) = self.order.pop_front() { self.items.remove(&old); }
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let mut cache = Cache { most: 2, items: BTreeMap::new(), order: VecDeque::new() };
    let (mut words, mut out) = (request.text()?.split(' '), String::new());
    while let Some(word) = words.next() {
        let key = words.next().ok_or("a key")?;
        match word { "get" => out += &format!("{:?} ", cache.get(&key)), "put" => cache.put(key, words.next().ok_or("a value")?), _ => return Err(Error::new(Code::Unimplemented, word)) }
    }
    Ok(out.into_bytes())
}

//= brainfuck
//? ++++++++[>++++[>++>+++>+++>+<<<<-]>+>+>->>+[<]<-]>>.>---.+++++++..+++.
//> Hello
//? [
pub fn handle(request: Request<'_>) -> Reply {
    let code = request.body();
    let (mut jumps, mut open) = (vec![0; code.len()], vec![]);
    for (at, b) in code.iter().enumerate() {
        match b { b'[' => open.push(at), b']' => { let from = open.pop().ok_or(Error::invalid("a `]`"))?; (jumps[at], jumps[from]) = (from, at) } _ => {} }
    }
    if !open.is_empty() { return Err(Error::invalid("a `[`")) }
    let (mut tape, mut head, mut at, mut out) = ([0_u8; 300], 0_usize, 0, vec![]);
    while let Some(b) = code.get(at) {
        match b {
            b'>' => head += 1, b'<' => head -= 1,
            b'+' => tape[head] = tape[head].wrapping_add(1), b'-' => tape[head] = tape[head].wrapping_sub(1),
            b'.' => out.push(tape[head]),
            b'[' if tape[head] == 0 => at = jumps[at], b']' if tape[head] != 0 => at = jumps[at],
            _ => {}
        }
        at += 1;
    }
    Ok(out)
}

//= stack_machine
//? push 6 push 7 mul dup print push 0 jz 12 halt print
//? push 1 add
#[derive(Debug, Clone, Copy)]
enum Op { Push(i32), Add, Mul, Dup, Print, Jz(usize), Halt }
fn parse(text: &str) -> Result<Vec<Op>, Error> {
    let (mut words, mut ops) = (text.split(' '), vec![]);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|w| w.parse::<i32>().ok()).ok_or_else(|| Error::invalid(format!("{word} what?")));
        ops.push(match word {
            "push" => Op::Push(number()?), "jz" => Op::Jz(number()? as usize),
            "add" => Op::Add, "mul" => Op::Mul, "dup" => Op::Dup, "print" => Op::Print, "halt" => Op::Halt,
            other => return Err(Error::new(Code::Unimplemented, other)),
        });
    }
    Ok(ops)
}
pub fn handle(request: Request<'_>) -> Reply {
    let ops = parse(request.text()?)?;
    let (mut stack, mut at, mut out): (Vec<i32>, usize, String) = (vec![], 0, String::new());
    for _ in 0..1000 {
        let Some(op) = ops.get(at) else { break };
        at += 1;
        let mut pop = || stack.pop().ok_or_else(|| Error::new(Code::FailedPrecondition, format!("{op:?} on nothing")));
        match *op {
            Op::Push(n) => stack.push(n),
            Op::Add => { let n = pop()?.wrapping_add(pop()?); stack.push(n) }
            Op::Mul => { let n = pop()?.wrapping_mul(pop()?); stack.push(n) }
            Op::Dup => { let n = pop()?; stack.extend([n, n]) }
            Op::Print => out += &format!("{} ", pop()?),
            Op::Jz(to) => if pop()? == 0 { at = to },
            Op::Halt => break,
        }
    }
    Ok(out.into_bytes())
}

//= life
//? 6
pub fn handle(request: Request<'_>) -> Reply {
    let n: usize = request.text()?.parse().map_err(|_| Error::invalid("how many steps"))?;
    let mut board = [[false; 12]; 10];
    for (r, c) in [(0, 1), (1, 2), (2, 0), (2, 1), (2, 2), (6, 6), (6, 7), (6, 8)] { board[r][c] = true }
    for _ in 0..n {
        let old = board;
        for (r, row) in board.iter_mut().enumerate() { for (c, cell) in row.iter_mut().enumerate() {
            let near = (0..9).filter(|k| *k != 4 && old[(r + 9 + k / 3) % 10][(c + 11 + k % 3) % 12]).count();
            *cell = near == 3 || (old[r][c] && near == 2);
        } }
    }
    Ok(board.iter().flat_map(|row| row.iter().map(|c| if *c { b'#' } else { b'.' }).chain([b'\n'])).collect())
}

//= mandelbrot
//? 40 12
use core::ops::{Add, Mul};
#[derive(Clone, Copy)]
struct Complex(f64, f64);
impl Add for Complex { type Output = Self; fn add(self, o: Self) -> Self { Self(self.0 + o.0, self.1 + o.1) } }
impl Mul for Complex { type Output = Self; fn mul(self, o: Self) -> Self { Self(self.0 * o.0 - self.1 * o.1, self.0 * o.1 + self.1 * o.0) } }
pub fn handle(request: Request<'_>) -> Reply {
    let (w, h) = request.text()?.split_once(' ').ok_or("width height")?;
    let (w, h): (u32, u32) = (w.parse().unwrap_or(10), h.parse().unwrap_or(10));
    let mut out = vec![];
    for y in 0..h.min(50) {
        for x in 0..w.min(70) {
            let c = Complex(f64::from(x) / f64::from(w) * 3.0 - 2.0, f64::from(y) / f64::from(h) * 2.0 - 1.0);
            let mut z = Complex(0.0, 0.0);
            let n = (0..80).take_while(|_| { z = z * z + c; z.0 * z.0 + z.1 * z.1 < 4.0 }).count();
            out.push(b" .:-=+*#%@"[n * 9 / 80]);
        }
        out.push(b'\n');
    }
    Ok(out)
}

//= statistics
//? 2 4 4 4 5 5 7 9
fn root(x: f64) -> f64 { (0..60).fold(x.max(1.0), |r, _| (r + x / r) / 2.0) }
pub fn handle(request: Request<'_>) -> Reply {
    let mut all: Vec<f64> = request.text()?.split(' ').filter_map(|w| w.parse().ok()).collect();
    if all.is_empty() { return Err(Error::invalid("no number")) }
    all.sort_by(f64::total_cmp);
    let n = all.len() as f64;
    let mean = all.iter().sum::<f64>() / n;
    let variance = all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
    let quantile = |q: f64| { let at = q * (n - 1.0); let low = at as usize; all[low] + (at - low as f64) * (all[(low + 1).min(all.len() - 1)] - all[low]) };
    Ok(format!("{mean:.4} {:.4} {:?}", root(variance), [0.0, 0.25, 0.5, 0.75, 1.0].map(quantile)).into_bytes())
}

//= fourier
//? 1 0 0 0 1 0 0 0
fn turn(k: usize, n: usize) -> (f64, f64) {
    let x = core::f64::consts::TAU * (k % n) as f64 / n as f64;
    let series = |mut term: f64, first: u32| { let mut sum = term; for i in 0..20 { let m = f64::from(first + 2 * i); term *= -x * x / (m * (m + 1.0)); sum += term } sum };
    (series(1.0, 1), series(x, 2))
}
fn transform(values: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let n = values.len();
    if n == 1 { return values.to_vec() }
    let part = |odd: usize| transform(&values.iter().skip(odd).step_by(2).copied().collect::<Vec<_>>());
    let (even, odd) = (part(0), part(1));
    (0..n).map(|k| {
        let ((c, s), (re, im)) = (turn(k, n), odd[k % (n / 2)]);
        (even[k % (n / 2)].0 + c * re + s * im, even[k % (n / 2)].1 + c * im - s * re)
    }).collect()
}
pub fn handle(request: Request<'_>) -> Reply {
    let values: Vec<_> = request.text()?.split(' ').filter_map(|w| w.parse().ok()).map(|x| (x, 0.0)).collect();
    if !values.len().is_power_of_two() { return Err(Error::invalid("a power of two")) }
    Ok(transform(&values).iter().map(|(a, b)| format!("{:.3}{:+.3}i ", a + 0.0, b + 0.0)).collect::<String>().into_bytes())
}

//= primes
//? 60
//? 18446744073709551557
fn power(mut b: u64, mut e: u64, m: u64) -> u64 {
    let mul = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(m)) as u64;
    let mut v = 1;
    while e > 0 { if e & 1 == 1 { v = mul(v, b) } b = mul(b, b); e >>= 1; }
    v
}
fn is_prime(n: u64) -> bool {
    const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];
    if n < 2 || BASES.iter().any(|p| n % p == 0) { return BASES.contains(&n) }
    let shift = (n - 1).trailing_zeros();
    BASES.iter().all(|b| {
        let mut x = power(*b, (n - 1) >> shift, n);
        x == 1 || (0..shift).any(|_| { let is = x == n - 1; x = power(x, 2, n); is })
    })
}
pub fn handle(request: Request<'_>) -> Reply {
    let n: u64 = request.text()?.parse().map_err(|_| Error::invalid("a number"))?;
    let near: Vec<u64> = (n.saturating_sub(50)..=n).filter(|n| is_prime(*n)).collect();
    Ok(format!("{} {near:?}", is_prime(n)).into_bytes())
}

//= modules
//? 3 4
mod shapes;
pub fn handle(request: Request<'_>) -> Reply {
    let (a, b) = request.text()?.split_once(' ').ok_or("two numbers")?;
    let (a, b) = (a.parse().map_err(|_| "a number")?, b.parse().map_err(|_| "a number")?);
    Ok(format!("{} {}", shapes::rectangle::area(a, b), shapes::longest(&[a, b])).into_bytes())
}
//- shapes.rs
pub mod rectangle;
pub fn longest(sides: &[u32]) -> String { sides.iter().max().map_or(String::new(), |s| s.to_string()) }
//- shapes/rectangle.rs
pub fn area(a: u32, b: u32) -> Box<str> { format!("{}", super::super::shapes::rectangle::product(a, b)).into() }
pub(crate) fn product(a: u32, b: u32) -> u64 { u64::from(a) * u64::from(b) }

//= macros
//? 5
macro_rules! table { ($($name:ident => $value:expr),* $(,)?) => { [$((stringify!($name), $value as u64)),*] } }
macro_rules! most { ($x:expr) => { $x }; ($x:expr, $($rest:expr),+) => { { let (a, b) = ($x, most!($($rest),+)); if a > b { a } else { b } } } }
pub fn handle(request: Request<'_>) -> Reply {
    let n: u32 = request.text()?.parse().map_err(|_| Error::invalid("a number"))?;
    let rows = table! { square => n * n, cube => n.pow(3), half => n / 2, };
    Ok(format!("{rows:?} {}", most!(n, 3, 9 - n.min(9))).into_bytes())
}

//= typestate
//? open read read close
use core::marker::PhantomData;
struct Closed;
struct Open;
struct Door<S> { uses: u32, state: PhantomData<S> }
impl Door<Closed> { fn new() -> Self { Self { uses: 0, state: PhantomData } } fn open(self) -> Door<Open> { Door { uses: self.uses + 1, state: PhantomData } } }
impl Door<Open> { fn read(&mut self) -> u32 { self.uses *= 3; self.uses } fn close(self) -> Door<Closed> { Door { uses: self.uses, state: PhantomData } } }
enum Any { Open(Door<Open>), Closed(Door<Closed>) }
pub fn handle(request: Request<'_>) -> Reply {
    let (mut door, mut out) = (Any::Closed(Door::new()), vec![]);
    for word in request.text()?.split(' ') {
        door = match (word, door) {
            ("open", Any::Closed(d)) => Any::Open(d.open()),
            ("read", Any::Open(mut d)) => { out.push(d.read()); Any::Open(d) }
            ("close", Any::Open(d)) => Any::Closed(d.close()),
            (word, _) => return Err(Error::new(Code::FailedPrecondition, word)),
        };
    }
    Ok(format!("{out:?}").into_bytes())
}

//= borrowed
//? plain text
//? a\tb\tc
use alloc::borrow::Cow;
fn clean(text: &str) -> Cow<'_, str> { if text.contains('\t') { Cow::Owned(text.replace('\t', "    ")) } else { Cow::Borrowed(text) } }
pub fn handle(request: Request<'_>) -> Reply {
    let text = clean(request.text()?);
    let kind = match &text { Cow::Owned(_) => "owned", Cow::Borrowed(_) => "borrowed" };
    let longest = text.split(|c: char| !c.is_alphanumeric()).max_by_key(|w| w.len()).unwrap_or_default();
    Ok([kind, longest, text.as_ref()].join("/").into_bytes())
}

//= panics
//? 0
//? 3
//? 9
pub fn handle(request: Request<'_>) -> Reply {
    let n: usize = request.text()?.parse().expect("a number");
    let table = [10, 20, 0, 5];
    Ok((100 / table[n]).to_string().into_bytes())
}

//= vectors
//? 0.5 1.5 -2.25 8 16 0.125 3 7
/// Loops that compilers turn into instructions on vectors.
pub fn handle(request: Request<'_>) -> Reply {
    let x: Vec<f32> = request.text()?.split(' ').filter_map(|w| w.parse().ok()).collect();
    let mut y = vec![1.0_f32; x.len()];
    for _ in 0..10 { for (y, x) in y.iter_mut().zip(&x) { *y = *y * 0.5 + x } }
    let mut bytes: Vec<u8> = (0..=255).collect();
    for b in &mut bytes { *b = b.wrapping_mul(31) ^ 0x5a }
    let wide: u32 = bytes.iter().map(|b| u32::from(*b) * 3).sum();
    Ok(format!("{y:?} {wide} {}", bytes.iter().filter(|b| **b > 99).count()).into_bytes())
}
