//! Functions of the corpus about texts. `runs/corpus/sources.rs` has the form of these files.

//= word_count
//? the cat and the dog and the bird
//? 
use alloc::collections::BTreeMap;
pub fn handle(request: Request<'_>) -> Reply {
    let mut words: BTreeMap<&str, u32> = BTreeMap::new();
    for word in request.text()?.split_whitespace() {
        *words.entry(word).or_default() += 1;
    }
    let mut words: Vec<_> = words.into_iter().collect();
    words.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    Ok(words.iter().map(|(w, n)| format!("{n} {w}\n")).collect::<String>().into_bytes())
}

//= line_numbers
//? one\ntwo\n\nfour
pub fn handle(request: Request<'_>) -> Reply {
    let mut out = String::new();
    for (number, line) in request.text()?.lines().enumerate() {
        out.push_str(&format!("{:>4}  {}\n", number + 1, line.trim_end()));
    }
    Ok(out.into())
}

//= wrap
//? The quick brown fox jumps over the lazy dog, and runs away from it as fast as it can.
/// Wraps at a width; long words are split.
pub fn handle(request: Request<'_>) -> Reply {
    const WIDTH: usize = 20;
    let mut lines: Vec<String> = vec![String::new()];
    for word in request.text()?.split(' ') {
        let letters: Vec<char> = word.chars().collect();
        for part in letters.chunks(WIDTH) {
            let part: String = part.iter().collect();
            let last = lines.last_mut().unwrap();
            if last.is_empty() {
                *last = part;
            } else if last.chars().count() + 1 + part.chars().count() <= WIDTH {
                last.push(' ');
                last.push_str(&part);
            } else {
                lines.push(part);
            }
        }
    }
    Ok(lines.join("\n").into_bytes())
}

//= case_of_names
//? fooBar baz_quux kebab-case-name HTTPServer
#[derive(Clone, Copy)]
enum Case { Snake, Kebab, Camel, Pascal, Loud }
fn words(name: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut word = String::new();
    let mut lower = false;
    for c in name.chars() {
        if c == '_' || c == '-' || (c.is_uppercase() && lower) {
            if !word.is_empty() { all.push(core::mem::take(&mut word)); }
        }
        lower = c.is_lowercase();
        if c.is_alphanumeric() { word.extend(c.to_lowercase()); }
    }
    if !word.is_empty() { all.push(word); }
    all
}
fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
fn join(words: &[String], case: Case) -> String {
    match case {
        Case::Snake => words.join("_"),
        Case::Kebab => words.join("-"),
        Case::Loud => words.join("_").to_uppercase(),
        Case::Pascal => words.iter().map(|w| capital(w)).collect(),
        Case::Camel => words.iter().enumerate().map(|(n, w)| if n == 0 { w.clone() } else { capital(w) }).collect(),
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let cases = [Case::Snake, Case::Kebab, Case::Camel, Case::Pascal, Case::Loud];
    let all = request.text()?.split(' ').map(words).map(|w| cases.map(|c| join(&w, c)).join(" "));
    Ok(all.collect::<Vec<_>>().join("\n").into_bytes())
}

//= palindrome
//? A man, a plan, a canal: Panama!
//? not one
pub fn handle(request: Request<'_>) -> Reply {
    let letters: Vec<char> = request.text()?.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    let is = letters.iter().eq(letters.iter().rev());
    Ok(if is { b"yes".to_vec() } else { b"no".to_vec() })
}

//= anagrams
//? listen silent enlist google elgoog abc cab tinsel
use alloc::collections::{BTreeMap, BTreeSet};
pub fn handle(request: Request<'_>) -> Reply {
    let mut groups: BTreeMap<Vec<u8>, BTreeSet<&str>> = BTreeMap::new();
    for word in request.text()?.split_whitespace() {
        let mut key = word.as_bytes().to_vec();
        key.sort_unstable();
        groups.entry(key).or_default().insert(word);
    }
    let groups = groups.values().filter(|g| g.len() > 1).map(|g| format!("{g:?}"));
    Ok(groups.collect::<Vec<_>>().join(";").into_bytes())
}

//= caesar
//? 3 Hello, World
//? -5 Hello, World
//? x
fn shift(c: char, by: i32) -> char {
    let base = match c { 'a'..='z' => b'a', 'A'..='Z' => b'A', _ => return c };
    char::from(base + (c as i32 - i32::from(base) + by).rem_euclid(26) as u8)
}
pub fn handle(request: Request<'_>) -> Reply {
    let (by, text) = request.text()?.split_once(' ').ok_or(Error::invalid("a number and a text"))?;
    let by = by.parse().map_err(|e: core::num::ParseIntError| Error::invalid(e.to_string()))?;
    Ok(text.chars().map(|c| shift(c, by)).collect::<String>().into())
}

//= vigenere
//? LEMON:attackatdawn
pub fn handle(request: Request<'_>) -> Reply {
    let Some((key, text)) = request.text()?.split_once(':') else { return Err("no key".into()) };
    let key: Vec<u8> = key.bytes().filter(u8::is_ascii_uppercase).map(|b| b - b'A').collect();
    if key.is_empty() { return Err(Error::new(Code::FailedPrecondition, "an empty key")) }
    let coded = text.bytes().filter(u8::is_ascii_lowercase).zip(key.iter().cycle());
    Ok(coded.map(|(t, k)| b'a' + (t - b'a' + k) % 26).collect())
}

//= morse
//? sos we are here
//? ... --- ...
const CODES: [(&str, char); 26] = [
    (".-", 'a'), ("-...", 'b'), ("-.-.", 'c'), ("-..", 'd'), (".", 'e'), ("..-.", 'f'), ("--.", 'g'),
    ("....", 'h'), ("..", 'i'), (".---", 'j'), ("-.-", 'k'), (".-..", 'l'), ("--", 'm'), ("-.", 'n'),
    ("---", 'o'), (".--.", 'p'), ("--.-", 'q'), (".-.", 'r'), ("...", 's'), ("-", 't'), ("..-", 'u'),
    ("...-", 'v'), (".--", 'w'), ("-..-", 'x'), ("-.--", 'y'), ("--..", 'z'),
];
pub fn handle(request: Request<'_>) -> Reply {
    let text = request.text()?;
    let is_code = text.chars().all(|c| matches!(c, '.' | '-' | ' '));
    let out: Vec<String> = if is_code {
        text.split(' ').filter_map(|w| CODES.iter().find(|(code, _)| *code == w)).map(|(_, c)| c.to_string()).collect()
    } else {
        text.chars().map(|c| CODES.iter().find(|(_, l)| *l == c).map_or("/".into(), |(code, _)| (*code).into())).collect()
    };
    Ok(out.join(if is_code { "" } else { " " }).into())
}

//= soundex
//? Robert Rupert Ashcraft Tymczak Pfister
fn digit(c: u8) -> u8 {
    match c.to_ascii_lowercase() {
        b'b' | b'f' | b'p' | b'v' => b'1',
        b'c' | b'g' | b'j' | b'k' | b'q' | b's' | b'x' | b'z' => b'2',
        b'd' | b't' => b'3', b'l' => b'4', b'm' | b'n' => b'5', b'r' => b'6',
        b'h' | b'w' => b'-', _ => b'0',
    }
}
fn soundex(word: &str) -> String {
    let bytes = word.as_bytes();
    let mut code = vec![bytes[0].to_ascii_uppercase()];
    let mut last = digit(bytes[0]);
    for &b in &bytes[1..] {
        let d = digit(b);
        if d == b'-' { continue }
        if d != b'0' && d != last { code.push(d) }
        last = d;
    }
    code.resize(4, b'0');
    String::from_utf8(code).unwrap()
}
pub fn handle(request: Request<'_>) -> Reply {
    Ok(request.text()?.split_whitespace().map(soundex).collect::<Vec<_>>().join(" ").into())
}

//= kmp
//? aba abacababa
/// Knuth, Morris and Pratt.
fn failure(pattern: &[u8]) -> Vec<usize> {
    let mut table = vec![0; pattern.len()];
    let mut k = 0;
    for i in 1..pattern.len() {
        while k > 0 && pattern[i] != pattern[k] { k = table[k - 1]; }
        if pattern[i] == pattern[k] { k += 1; }
        table[i] = k;
    }
    table
}
pub fn handle(request: Request<'_>) -> Reply {
    let mut words = request.body().splitn(2, |b| *b == b' ');
    let (pattern, text) = (words.next().unwrap_or(b""), words.next().unwrap_or(b""));
    if pattern.is_empty() { return Ok(vec![]) }
    let table = failure(pattern);
    let (mut k, mut found) = (0, Vec::new());
    for (i, b) in text.iter().enumerate() {
        while k > 0 && *b != pattern[k] { k = table[k - 1]; }
        if *b == pattern[k] { k += 1; }
        if k == pattern.len() { found.push(i + 1 - k); k = table[k - 1]; }
    }
    Ok(format!("{found:?}").into())
}

//= rabin_karp
//? aba abacababa
pub fn handle(request: Request<'_>) -> Reply {
    const P: u64 = 1_000_000_007;
    let (pattern, text) = request.text()?.split_once(' ').ok_or("two words")?;
    let (p, t) = (pattern.as_bytes(), text.as_bytes());
    if p.is_empty() || p.len() > t.len() { return Ok(b"none".to_vec()) }
    let high = (1..p.len()).fold(1, |h, _| h * 256 % P);
    let hash = |s: &[u8]| s.iter().fold(0, |h, b| (h * 256 + u64::from(*b)) % P);
    let (goal, mut now) = (hash(p), hash(&t[..p.len()]));
    let mut found = Vec::new();
    for at in 0..=t.len() - p.len() {
        if now == goal && &t[at..at + p.len()] == p { found.push(at) }
        if at + p.len() < t.len() {
            now = ((now + P - u64::from(t[at]) * high % P) * 256 + u64::from(t[at + p.len()])) % P;
        }
    }
    Ok(format!("{found:?}").into())
}

//= boyer_moore
//? aba abacababa
pub fn handle(request: Request<'_>) -> Reply {
    let (pattern, text) = request.text()?.split_once(' ').ok_or("two words")?;
    let (p, t) = (pattern.as_bytes(), text.as_bytes());
    let mut skip = [p.len(); 256];
    for (i, b) in p.iter().enumerate().take(p.len().saturating_sub(1)) { skip[*b as usize] = p.len() - 1 - i; }
    let (mut at, mut found) = (0, String::new());
    while !p.is_empty() && at + p.len() <= t.len() {
        if t[at..].starts_with(p) { found += &format!("{at},"); }
        at += skip[t[at + p.len() - 1] as usize].max(1);
    }
    Ok(found.into_bytes())
}

//= z_function
//? aabxaabxcaabxaabxay
pub fn handle(request: Request<'_>) -> Reply {
    let s = request.body();
    let mut z = vec![0_usize; s.len()];
    let (mut l, mut r) = (0, 0);
    for i in 1..s.len() {
        if i < r { z[i] = (r - i).min(z[i - l]); }
        while i + z[i] < s.len() && s[z[i]] == s[i + z[i]] { z[i] += 1; }
        if i + z[i] > r { (l, r) = (i, i + z[i]); }
    }
    Ok(z.iter().flat_map(|n| [b'0' + (*n as u8 % 10)]).collect())
}

//= suffix_array
//? banana
//? mississippi
pub fn handle(request: Request<'_>) -> Reply {
    let s = request.body();
    let n = s.len();
    let mut order: Vec<usize> = (0..n).collect();
    let mut rank: Vec<i32> = s.iter().map(|b| i32::from(*b)).collect();
    let mut k = 1;
    while k < 2 * n {
        let key = |i: usize| (rank[i], rank.get(i + k).copied().unwrap_or(-1));
        order.sort_by_key(|i| key(*i));
        let mut next = vec![0; n];
        for w in order.windows(2) {
            next[w[1]] = next[w[0]] + i32::from(key(w[0]) < key(w[1]));
        }
        rank = next;
        k *= 2;
    }
    Ok(order.iter().map(usize::to_string).collect::<Vec<_>>().join(" ").into())
}

//= glob
//? *.rs main.rs
//? a?c*e abcde
//? [a-c]x dx
fn matches(p: &[u8], t: &[u8]) -> bool {
    match (p, t) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => matches(rest, t) || (!t.is_empty() && matches(p, &t[1..])),
        ([b'?', p @ ..], [_, t @ ..]) => matches(p, t),
        ([b'[', a, b'-', z, b']', p @ ..], [c, t @ ..]) => (a..=z).contains(&c) && matches(p, t),
        ([a, p @ ..], [b, t @ ..]) if a == b => matches(p, t),
        _ => false,
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let (p, t) = request.text()?.split_once(' ').ok_or(Error::invalid("two words"))?;
    Ok(matches(p.as_bytes(), t.as_bytes()).to_string().into_bytes())
}

//= template
//? Hello {name}, you are {age}. {{ok}} {none}|name=Ann|age=7
pub fn handle(request: Request<'_>) -> Reply {
    let mut parts = request.text()?.split('|');
    let template = parts.next().unwrap_or_default();
    let values: Vec<(&str, &str)> = parts.filter_map(|p| p.split_once('=')).collect();
    let mut out = String::with_capacity(template.len());
    let mut chars = template.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' if chars.peek() == Some(&'{') => { chars.next(); out.push('{') }
            '}' if chars.peek() == Some(&'}') => { chars.next(); out.push('}') }
            '{' => {
                let name: String = chars.by_ref().take_while(|c| *c != '}').collect();
                match values.iter().find(|(key, _)| *key == name) {
                    Some((_, value)) => out.push_str(value),
                    None => { out.push('<'); out += &name; out.push('>') }
                }
            }
            c => out.push(c),
        }
    }
    Ok(out.into_bytes())
}

//= markdown
//? # Title\nSome *bold* text & `code`\n- one\n- two\n\nend
fn inline(text: &str) -> String {
    let (mut out, mut bold, mut code) = (String::new(), false, false);
    for c in text.chars() {
        match c {
            '*' if !code => { bold = !bold; out += if bold { "<b>" } else { "</b>" } }
            '`' => { code = !code; out += if code { "<code>" } else { "</code>" } }
            '&' => out += "&amp;", '<' => out += "&lt;", '>' => out += "&gt;",
            c => out.push(c),
        }
    }
    out
}
pub fn handle(request: Request<'_>) -> Reply {
    let (mut out, mut list) = (String::new(), false);
    for line in request.text()?.lines() {
        let item = line.strip_prefix("- ");
        if item.is_some() != list { out += if list { "</ul>" } else { "<ul>" }; list = !list; }
        let level = line.bytes().take_while(|b| *b == b'#').count();
        match item {
            Some(item) => out += &format!("<li>{}</li>", inline(item)),
            None if level > 0 => out += &format!("<h{level}>{}</h{level}>", inline(line[level..].trim())),
            None if line.is_empty() => {}
            None => out += &format!("<p>{}</p>", inline(line)),
        }
    }
    if list { out += "</ul>" }
    Ok(out.into())
}

//= slug
//? Crème Brûlée: the 10 best!
pub fn handle(request: Request<'_>) -> Reply {
    let plain = |c: char| match c {
        'à'..='å' => 'a', 'è'..='ë' => 'e', 'ì'..='ï' => 'i', 'ò'..='ö' => 'o', 'ù'..='ü' => 'u', 'ç' => 'c', c => c,
    };
    let mut slug = String::new();
    for c in request.text()?.chars().flat_map(char::to_lowercase).map(plain) {
        if c.is_ascii_alphanumeric() { slug.push(c) } else if !slug.ends_with('-') { slug.push('-') }
    }
    Ok(slug.trim_matches('-').to_owned().into_bytes())
}

//= diff
//? a\nb\nc\nd|a\nc\nx\nd
/// Lines that differ, by the longest common subsequence.
pub fn handle(request: Request<'_>) -> Reply {
    let (old, new) = request.text()?.split_once('|').ok_or("two texts")?;
    let (a, b): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let mut t = vec![vec![0_u32; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            t[i][j] = if a[i] == b[j] { t[i + 1][j + 1] + 1 } else { t[i + 1][j].max(t[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut out) = (0, 0, String::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] { out += &format!(" {}\n", a[i]); i += 1; j += 1; }
        else if j == b.len() || i < a.len() && t[i + 1][j] >= t[i][j + 1] { out += &format!("-{}\n", a[i]); i += 1; }
        else { out += &format!("+{}\n", b[j]); j += 1; }
    }
    Ok(out.into_bytes())
}

//= number_words
//? 0 7 13 40 99 100 342 1000 70017 1234567
const SMALL: [&str; 20] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"];
const TENS: [&str; 10] = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
fn words(n: u64) -> String {
    let with = |head: String, rest: u64| if rest == 0 { head } else { format!("{head} {}", words(rest)) };
    match n {
        0..=19 => SMALL[n as usize].into(),
        20..=99 => with(TENS[n as usize / 10].into(), n % 10),
        100..=999 => with(format!("{} hundred", words(n / 100)), n % 100),
        1000..=999_999 => with(format!("{} thousand", words(n / 1000)), n % 1000),
        _ => with(format!("{} million", words(n / 1_000_000)), n % 1_000_000),
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let mut all = Vec::new();
    for word in request.text()?.split(' ') {
        all.push(words(word.parse().map_err(|_| Error::invalid(format!("`{word}` is no number")))?));
    }
    Ok(all.join(", ").into())
}

//= bracket_match
//? {[()]}()
//? {[(])}
//? ((
pub fn handle(request: Request<'_>) -> Reply {
    let mut open = Vec::new();
    for (at, c) in request.text()?.char_indices() {
        let wanted = match c { ')' => '(', ']' => '[', '}' => '{', '(' | '[' | '{' => { open.push((at, c)); continue } _ => continue };
        if open.pop().map(|(_, c)| c) != Some(wanted) {
            return Err(Error::invalid(format!("`{c}` at {at} closes nothing")));
        }
    }
    match open.last() { None => Ok(b"balanced".to_vec()), Some((at, c)) => Err(format!("`{c}` at {at} stays open").into()) }
}

//= tally
//? hello world, hello functions
/// Counts letters in a table on the stack and draws bars.
pub fn handle(request: Request<'_>) -> Reply {
    let mut counts = [0_usize; 26];
    for b in request.body().iter().filter(|b| b.is_ascii_alphabetic()) {
        counts[usize::from(b.to_ascii_lowercase() - b'a')] += 1;
    }
    let bars = counts.iter().enumerate().filter(|(_, n)| **n > 0);
    Ok(bars.map(|(l, n)| format!("{} {}\n", char::from(b'a' + l as u8), "#".repeat(*n))).collect::<String>().into())
}
