//! Functions of the corpus that read what has a grammar.

//= json_pretty
//? {"a":[1,2,{"b":null}],"c":"x\\"y","d":-1.5e3,"e":true}
//? {"a":[1,}
//? [[[[[[]]]]]]
use alloc::collections::BTreeMap;
#[derive(Debug)]
enum Json { Null, Bool(bool), Number(f64), Text(String), List(Vec<Json>), Map(BTreeMap<String, Json>) }
struct Parser<'a> { bytes: &'a [u8], at: usize }
impl<'a> Parser<'a> {
    fn fail<T>(&self, what: &str) -> Result<T, Error> { Err(Error::invalid(format!("{what} at {}", self.at))) }
    fn space(&mut self) { while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) { self.at += 1 } }
    fn eat(&mut self, b: u8) -> bool {
        self.space();
        let is = self.bytes.get(self.at) == Some(&b);
        self.at += usize::from(is);
        is
    }
    fn word(&mut self, word: &str, value: Json) -> Result<Json, Error> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) { return self.fail("a word that is none") }
        self.at += word.len();
        Ok(value)
    }
    fn value(&mut self, depth: u32) -> Result<Json, Error> {
        if depth > 32 { return self.fail("too deep") }
        self.space();
        match self.bytes.get(self.at) {
            Some(b'n') => self.word("null", Json::Null),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'"') => Ok(Json::Text(self.text()?)),
            Some(b'[') => {
                self.at += 1;
                let mut list = Vec::new();
                if self.eat(b']') { return Ok(Json::List(list)) }
                loop {
                    list.push(self.value(depth + 1)?);
                    if self.eat(b']') { return Ok(Json::List(list)) }
                    if !self.eat(b',') { return self.fail("no comma") }
                }
            }
            Some(b'{') => {
                self.at += 1;
                let mut map = BTreeMap::new();
                if self.eat(b'}') { return Ok(Json::Map(map)) }
                loop {
                    self.space();
                    let key = self.text()?;
                    if !self.eat(b':') { return self.fail("no colon") }
                    map.insert(key, self.value(depth + 1)?);
                    if self.eat(b'}') { return Ok(Json::Map(map)) }
                    if !self.eat(b',') { return self.fail("no comma") }
                }
            }
            Some(b'-' | b'0'..=b'9') => {
                let rest = &self.bytes[self.at..];
                let length = rest.iter().take_while(|b| b"+-.eE0123456789".contains(b)).count();
                let text = core::str::from_utf8(&rest[..length]).unwrap();
                self.at += length;
                text.parse().map(Json::Number).or_else(|_| self.fail("no number"))
            }
            _ => self.fail("no value"),
        }
    }
    fn text(&mut self) -> Result<String, Error> {
        if self.bytes.get(self.at) != Some(&b'"') { return self.fail("no text") }
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match self.bytes.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    self.at += 1;
                    text.push(match self.bytes.get(self.at) { Some(b'n') => b'\n', Some(b't') => b'\t', Some(b) => *b, None => return self.fail("an end") });
                }
                Some(b) => text.push(*b),
                None => return self.fail("an open text"),
            }
            self.at += 1;
        }
        self.at += 1;
        String::from_utf8(text).or_else(|_| self.fail("no UTF-8"))
    }
}
fn show(json: &Json, indent: usize, out: &mut String) {
    let pad = |n: usize| "  ".repeat(n);
    match json {
        Json::Null => out.push_str("null"),
        Json::Bool(b) => out.push_str(&b.to_string()),
        Json::Number(n) => out.push_str(&n.to_string()),
        Json::Text(t) => out.push_str(&format!("{t:?}")),
        Json::List(list) if list.is_empty() => out.push_str("[]"),
        Json::List(list) => {
            for (n, item) in list.iter().enumerate() {
                out.push_str(if n == 0 { "[\n" } else { ",\n" });
                out.push_str(&pad(indent + 1));
                show(item, indent + 1, out);
            }
            out.push_str(&format!("\n{}]", pad(indent)));
        }
        Json::Map(map) => {
            for (n, (key, item)) in map.iter().enumerate() {
                out.push_str(if n == 0 { "{\n" } else { ",\n" });
                out.push_str(&format!("{}{key:?}: ", pad(indent + 1)));
                show(item, indent + 1, out);
            }
            out.push_str(&format!("\n{}}}", pad(indent)));
        }
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let mut parser = Parser { bytes: request.body(), at: 0 };
    let value = parser.value(0)?;
    parser.space();
    if parser.at != parser.bytes.len() { return parser.fail("more behind the value") }
    let mut out = String::new();
    show(&value, 0, &mut out);
    Ok(out.into_bytes())
}

//= json_write
//? 3
#[derive(Debug)]
struct Order { id: u64, customer: &'static str, items: Vec<(String, f32, u16)>, paid: Option<bool> }
trait Write { fn write(&self, out: &mut Vec<u8>); }
impl Write for u64 { fn write(&self, out: &mut Vec<u8>) { out.extend(self.to_string().bytes()) } }
impl Write for bool { fn write(&self, out: &mut Vec<u8>) { out.extend(if *self { &b"true"[..] } else { b"false" }) } }
impl Write for str { fn write(&self, out: &mut Vec<u8>) { out.extend(format!("{self:?}").bytes()) } }
impl<T: Write> Write for Option<T> {
    fn write(&self, out: &mut Vec<u8>) { match self { Some(value) => value.write(out), None => out.extend(b"null") } }
}
impl Write for (String, f32, u16) {
    fn write(&self, out: &mut Vec<u8>) { out.extend(format!("{{\"name\":{:?},\"price\":{:.2},\"count\":{}}}", self.0, self.1, self.2).bytes()) }
}
impl<T: Write> Write for [T] {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        for (n, item) in self.iter().enumerate() { if n > 0 { out.push(b',') } item.write(out) }
        out.push(b']');
    }
}
impl Write for Order {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(b"{\"id\":"); self.id.write(out);
        out.extend(b",\"customer\":"); self.customer.write(out);
        out.extend(b",\"items\":"); self.items[..].write(out);
        out.extend(b",\"paid\":"); self.paid.write(out);
        out.push(b'}');
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let count: u16 = request.text()?.trim().parse().map_err(|_| Error::invalid("how many?"))?;
    let items = (0..count).map(|n| (format!("item {n}"), f32::from(n) * 1.25 + 0.5, n * 3)).collect();
    let order = Order { id: 17, customer: "A \"B\"", items, paid: (count > 1).then_some(count % 2 == 1) };
    let mut out = Vec::new();
    order.write(&mut out);
    Ok(out)
}

//= csv
//? name,age\n"Doe, Jane",41\n"say ""hi""",7
fn record(line: &str) -> Vec<String> {
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => { chars.next(); field.push('"') }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(core::mem::take(&mut field)),
            c => field.push(c),
        }
    }
    fields.push(field);
    fields
}
pub fn handle(request: Request<'_>) -> Reply {
    let rows: Vec<_> = request.text()?.lines().map(record).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |n: usize| rows.iter().filter_map(|r| r.get(n)).map(|f| f.chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        for (field, width) in row.iter().zip(&widths) { out += &format!("|{field:<width$}"); }
        out += "|\n";
    }
    Ok(out.into())
}

//= ini
//? ; a comment\nroot=1\n[net]\nport = 80\nhost=a\n[log]\nlevel=3
use alloc::collections::BTreeMap;
pub fn handle(request: Request<'_>) -> Reply {
    let mut all: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    let mut section = "";
    for (number, line) in request.text()?.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with([';', '#']) { continue }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) { section = name; continue }
        let (key, value) = line.split_once('=').ok_or_else(|| Error::invalid(format!("line {}", number + 1)))?;
        all.insert((section, key.trim()), value.trim());
    }
    Ok(all.iter().map(|((s, k), v)| format!("{s}.{k}={v}\n")).collect::<String>().into_bytes())
}

//= calculate
//? 2+3*(4-1)^2/6
//? 1/0
//? (1
//? -3.5*2--1
struct Tokens<'a>(core::iter::Peekable<core::str::Chars<'a>>);
impl Tokens<'_> {
    fn peek(&mut self) -> Option<char> { while self.0.next_if(|c| *c == ' ').is_some() {} self.0.peek().copied() }
    fn number(&mut self) -> Result<f64, Error> {
        let mut text = String::new();
        while let Some(c) = self.0.next_if(|c| c.is_ascii_digit() || *c == '.') { text.push(c) }
        text.parse().map_err(|_| Error::invalid(format!("`{text}` is no number")))
    }
    fn sum(&mut self) -> Result<f64, Error> {
        let mut value = self.product()?;
        while let Some(op @ ('+' | '-')) = self.peek() {
            self.0.next();
            let right = self.product()?;
            if op == '+' { value += right } else { value -= right }
        }
        Ok(value)
    }
    fn product(&mut self) -> Result<f64, Error> {
        let mut value = self.power()?;
        while let Some(op @ ('*' | '/')) = self.peek() {
            self.0.next();
            let right = self.power()?;
            if op == '*' { value *= right } else if right == 0.0 { return Err(Error::new(Code::OutOfRange, "division by zero")) } else { value /= right }
        }
        Ok(value)
    }
    fn power(&mut self) -> Result<f64, Error> {
        let base = self.atom()?;
        if self.peek() != Some('^') { return Ok(base) }
        self.0.next();
        let exponent = self.power()? as i32;
        let value = (0..exponent.abs()).fold(1.0, |v, _| v * base);
        Ok(if exponent < 0 { 1.0 / value } else { value })
    }
    fn atom(&mut self) -> Result<f64, Error> {
        match self.peek() {
            Some('-') => { self.0.next(); Ok(-self.atom()?) }
            Some('(') => {
                self.0.next();
                let value = self.sum()?;
                if self.peek() == Some(')') { self.0.next(); Ok(value) } else { Err(Error::invalid("no `)`")) }
            }
            _ => self.number(),
        }
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let mut tokens = Tokens(request.text()?.chars().peekable());
    let value = tokens.sum()?;
    match tokens.peek() { None => Ok(value.to_string().into()), Some(c) => Err(Error::invalid(format!("`{c}` behind the end"))) }
}

//= shunting_yard
//? 3 + 4 * 2 / ( 1 - 5 )
//? 1 +
fn level(op: &str) -> u8 { match op { "+" | "-" => 1, "*" | "/" => 2, _ => 0 } }
pub fn handle(request: Request<'_>) -> Reply {
    let (mut out, mut ops): (Vec<String>, Vec<&str>) = (vec![], vec![]);
    for token in request.text()?.split_whitespace() {
        match token {
            "(" => ops.push(token),
            ")" => while let Some(op) = ops.pop() { if op == "(" { break } out.push(op.into()) },
            "+" | "-" | "*" | "/" => {
                while let Some(op) = ops.pop_if(|op| level(op) >= level(token)) { out.push(op.into()) }
                ops.push(token);
            }
            number => out.push(number.parse::<i64>().map_err(|e| Error::invalid(format!("{number}: {e}")))?.to_string()),
        }
    }
    out.extend(ops.into_iter().rev().map(String::from));
    let mut stack: Vec<i64> = vec![];
    for token in &out {
        if let Ok(n) = token.parse() { stack.push(n); continue }
        let (Some(b), Some(a)) = (stack.pop(), stack.pop()) else { return Err("an operand is missing".into()) };
        let value = match token.as_str() { "+" => a.checked_add(b), "-" => a.checked_sub(b), "*" => a.checked_mul(b), _ => a.checked_div(b) };
        stack.push(value.ok_or(Error::new(Code::OutOfRange, "overflow"))?);
    }
    Ok(format!("{} = {stack:?}", out.join(" ")).into_bytes())
}

//= lisp
//? (+ 1 (* 2 3) (if (< 1 2) 10 20))
//? (let x 5 (* x x))
//? ((fn n (+ n 1)) 4)
//? (+ 1
use alloc::rc::Rc;
#[derive(Clone)]
enum Value { Number(i64), Bool(bool), Fn(Rc<(String, Tree, Env)>) }
#[derive(Clone)]
enum Tree { Atom(String), List(Vec<Tree>) }
type Env = Option<Rc<Frame>>;
struct Frame { name: String, value: Value, next: Env }
fn read<'a>(tokens: &mut impl Iterator<Item = &'a str>) -> Result<Tree, Error> {
    match tokens.next() {
        None => Err("an open list".into()),
        Some("(") => {
            let mut list = vec![];
            loop { match read(tokens)? { Tree::Atom(a) if a == ")" => return Ok(Tree::List(list)), item => list.push(item) } }
        }
        Some(atom) => Ok(Tree::Atom(atom.into())),
    }
}
fn find(env: &Env, name: &str) -> Option<Value> {
    let mut at = env.as_ref();
    while let Some(frame) = at { if frame.name == name { return Some(frame.value.clone()) } at = frame.next.as_ref(); }
    None
}
fn number(value: Value) -> Result<i64, Error> { if let Value::Number(n) = value { Ok(n) } else { Err("no number".into()) } }
fn eval(tree: &Tree, env: &Env) -> Result<Value, Error> {
    let list = match tree {
        Tree::Atom(atom) => return match atom.parse() {
            Ok(n) => Ok(Value::Number(n)),
            Err(_) => find(env, atom).ok_or_else(|| Error::new(Code::NotFound, atom.as_str())),
        },
        Tree::List(list) => list,
    };
    let bind = |name: &str, value, next: &Env| Some(Rc::new(Frame { name: name.into(), value, next: next.clone() }));
    match &list[..] {
        [Tree::Atom(op), rest @ ..] => match (op.as_str(), rest) {
            ("if", [c, a, b]) => match eval(c, env)? { Value::Bool(false) => eval(b, env), _ => eval(a, env) },
            ("let", [Tree::Atom(name), value, body]) => eval(body, &bind(name, eval(value, env)?, env)),
            ("fn", [Tree::Atom(name), body]) => Ok(Value::Fn(Rc::new((name.clone(), body.clone(), env.clone())))),
            ("<", [a, b]) => Ok(Value::Bool(number(eval(a, env)?)? < number(eval(b, env)?)?)),
            ("+" | "*" | "-", args) => {
                let args = args.iter().map(|a| eval(a, env).and_then(number)).collect::<Result<Vec<_>, _>>()?;
                let first = args.first().copied().ok_or("no operand")?;
                Ok(Value::Number(args[1..].iter().fold(first, |v, n| match op.as_str() { "+" => v + n, "*" => v * n, _ => v - n })))
            }
            _ => Err(format!("`{op}` is no form").into()),
        },
        [function, argument] => match eval(function, env)? {
            Value::Fn(f) => eval(&f.1, &bind(&f.0, eval(argument, env)?, &f.2)),
            _ => Err("no function".into()),
        },
        _ => Err("an empty list".into()),
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let text = request.text()?.replace('(', " ( ").replace(')', " ) ");
    let tree = read(&mut text.split_whitespace())?;
    Ok(match eval(&tree, &None)? { Value::Number(n) => n.to_string(), Value::Bool(b) => b.to_string(), Value::Fn(_) => "fn".into() }.into())
}

//= regex
//? a.*b axxb
//? ^ab*c$ abbbc
//? x+y zxxy
//? ^q abc
fn here(re: &[u8], t: &[u8]) -> bool {
    match re {
        [] => true,
        [b'$'] => t.is_empty(),
        [c, b'*', re @ ..] => star(*c, re, t),
        [c, b'+', re @ ..] => t.first().is_some_and(|b| *c == b'.' || b == c) && star(*c, re, &t[1..]),
        [c, re @ ..] => t.first().is_some_and(|b| *c == b'.' || b == c) && here(re, &t[1..]),
    }
}
fn star(c: u8, re: &[u8], mut t: &[u8]) -> bool {
    loop {
        if here(re, t) { return true }
        match t { [b, rest @ ..] if c == b'.' || *b == c => t = rest, _ => return false }
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let (re, text) = request.text()?.split_once(' ').ok_or("two words")?;
    let (re, text) = (re.as_bytes(), text.as_bytes());
    let is = match re { [b'^', re @ ..] => here(re, text), _ => (0..=text.len()).any(|at| here(re, &text[at..])) };
    Ok(vec![b'0' + u8::from(is)])
}

//= regex_nfa
//? (a|b)*abb aababb
//? (a|b)*abb abab
/// Thompson's construction over states in a vector.
#[derive(Clone, Copy)]
enum State { Byte(u8, usize), Split(usize, usize), End }
fn alternatives(re: &mut &[u8], to: usize, all: &mut Vec<State>) -> usize {
    let mut begin = sequence(re, to, all);
    while let [b'|', rest @ ..] = *re {
        *re = rest;
        let other = sequence(re, to, all);
        all.push(State::Split(begin, other));
        begin = all.len() - 1;
    }
    begin
}
fn sequence(re: &mut &[u8], to: usize, all: &mut Vec<State>) -> usize {
    let mut parts: Vec<(&[u8], bool)> = vec![];
    while let [c, ..] = *re {
        if matches!(c, b'|' | b')') { break }
        let length = if *c == b'(' {
            let mut depth = 0;
            1 + re.iter().position(|c| { depth += i32::from(*c == b'(') - i32::from(*c == b')'); depth == 0 }).unwrap_or(re.len() - 1)
        } else { 1 };
        let (part, rest) = re.split_at(length);
        let star = rest.first() == Some(&b'*');
        parts.push((part, star));
        *re = &rest[usize::from(star)..];
    }
    let mut to = to;
    for (part, star) in parts.into_iter().rev() {
        let again = all.len();
        if star { all.push(State::End) }
        let goal = if star { again } else { to };
        let begin = match part {
            [b'(', inner @ .., b')'] => alternatives(&mut { inner }, goal, all),
            [c, ..] => { all.push(State::Byte(*c, goal)); all.len() - 1 }
            [] => goal,
        };
        if star { all[again] = State::Split(begin, to); to = again } else { to = begin }
    }
    to
}
fn add(at: usize, all: &[State], set: &mut Vec<usize>) {
    if set.contains(&at) { return }
    set.push(at);
    if let State::Split(a, b) = all[at] { add(a, all, set); add(b, all, set) }
}
pub fn handle(request: Request<'_>) -> Reply {
    let (re, text) = request.text()?.split_once(' ').ok_or("two words")?;
    let mut all = vec![State::End];
    let begin = alternatives(&mut re.as_bytes(), 0, &mut all);
    let mut now = vec![];
    add(begin, &all, &mut now);
    for b in text.bytes() {
        let mut next = vec![];
        for at in &now { if let State::Byte(c, to) = all[*at] && c == b { add(to, &all, &mut next) } }
        now = next;
    }
    Ok(format!("{} of {} states, {}", now.len(), all.len(), now.contains(&0)).into())
}

//= url
//? https://user@example.org:8443/a/b%20c?x=1&y=two%3D2#frag
//? nothing
fn decode(text: &str) -> String {
    let (mut out, mut bytes) = (Vec::new(), text.bytes());
    while let Some(b) = bytes.next() {
        let pair = if b == b'%' { bytes.next().zip(bytes.next()) } else { None };
        let digit = |b: u8| char::from(b).to_digit(16);
        match pair.and_then(|(h, l)| Some(digit(h)? * 16 + digit(l)?)) { Some(n) => out.push(n as u8), None => out.push(b) }
    }
    String::from_utf8_lossy(&out).into_owned()
}
pub fn handle(request: Request<'_>) -> Reply {
    let (scheme, rest) = request.text()?.split_once("://").ok_or(Error::invalid("no scheme"))?;
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (host, port) = host.rsplit_once(':').and_then(|(h, p)| Some((h, p.parse::<u16>().ok()?))).unwrap_or((host, 443));
    let query: Vec<_> = query.split('&').filter_map(|p| p.split_once('=')).map(|(k, v)| (decode(k), decode(v))).collect();
    Ok(format!("{scheme} {user} {host} {port} /{} {query:?} {fragment}", decode(path)).into())
}

//= http_request
//? GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX-Y:  z \r\n\r\nabc
//? BAD
struct Head<'a> { method: &'a str, path: &'a str, headers: Vec<(String, &'a str)> }
fn head(text: &str) -> Option<(Head<'_>, &str)> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let [method, path, "HTTP/1.1"] = lines.next()?.split(' ').collect::<Vec<_>>()[..] else { return None };
    let headers = lines.map(|l| l.split_once(':').map(|(k, v)| (k.to_ascii_lowercase(), v.trim()))).collect::<Option<_>>()?;
    Some((Head { method, path, headers }, body))
}
pub fn handle(request: Request<'_>) -> Reply {
    let (head, body) = head(request.text()?).ok_or(Error::invalid("400"))?;
    let length = head.headers.iter().find(|(k, _)| k == "content-length").and_then(|(_, v)| v.parse().ok()).unwrap_or(0);
    let body = body.get(..length).ok_or(Error::new(Code::DataLoss, "a short body"))?;
    Ok(format!("{} {} {:?} {body}", head.method, head.path, head.headers).into())
}

//= cidr
//? 10.1.2.3/20
//? 256.1.1.1/8
use core::net::Ipv4Addr;
pub fn handle(request: Request<'_>) -> Reply {
    let (address, bits) = request.text()?.split_once('/').ok_or("an address/bits")?;
    let address: Ipv4Addr = address.parse().map_err(|_| Error::invalid("no address"))?;
    let bits: u32 = bits.parse().ok().filter(|b| *b <= 32).ok_or("no bits")?;
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    let net = u32::from(address) & mask;
    let (first, last) = (Ipv4Addr::from(net), Ipv4Addr::from(net | !mask));
    Ok(format!("{first} {last} {} {}", Ipv4Addr::from(mask), address.is_private()).into())
}

//= ipv6
//? 2001:db8::ff00:42:8329
//? ::1
//? 1:2:3
/// By hand: groups, one gap, shortest form.
pub fn handle(request: Request<'_>) -> Reply {
    let text = request.text()?;
    let groups = |part: &str| -> Result<Vec<u16>, Error> {
        if part.is_empty() { return Ok(vec![]) }
        part.split(':').map(|g| u16::from_str_radix(g, 16).map_err(|e| Error::invalid(e.to_string()))).collect()
    };
    let all: [u16; 8] = match text.split_once("::") {
        Some((a, b)) => {
            let (mut a, b) = (groups(a)?, groups(b)?);
            if a.len() + b.len() > 7 { return Err(Error::invalid("too many groups")) }
            a.resize(8 - b.len(), 0);
            a.extend(b);
            a.try_into().unwrap()
        }
        None => groups(text)?.try_into().map_err(|_| Error::invalid("not eight groups"))?,
    };
    let full: Vec<_> = all.iter().map(|g| format!("{g:04x}")).collect();
    Ok(format!("{} {:#034x}", full.join(":"), all.iter().fold(0_u128, |n, g| n << 16 | u128::from(*g))).into())
}

//= semver
//? 1.2.3 1.2.3-alpha.1 1.2.3-alpha.beta 1.10.0 1.9.9 1.2.3-alpha
use core::cmp::Ordering;
#[derive(Debug, PartialEq, Eq)]
struct Version<'a> { core: [u64; 3], pre: Vec<&'a str> }
impl<'a> Version<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (core, pre) = text.split_once('-').unwrap_or((text, ""));
        let core: Vec<u64> = core.split('.').map(|n| n.parse().ok()).collect::<Option<_>>()?;
        Some(Self { core: core.try_into().ok()?, pre: pre.split('.').filter(|p| !p.is_empty()).collect() })
    }
}
impl Ord for Version<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let part = |(a, b): (&&str, &&str)| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b), (Ok(_), _) => Ordering::Less, (_, Ok(_)) => Ordering::Greater, _ => a.cmp(b),
        };
        let pre = || self.pre.iter().zip(&other.pre).map(part).find(|o| o.is_ne()).unwrap_or_else(|| self.pre.len().cmp(&other.pre.len()));
        self.core.cmp(&other.core).then_with(|| other.pre.is_empty().cmp(&self.pre.is_empty()).reverse().reverse()).then_with(pre)
    }
}
impl PartialOrd for Version<'_> { fn partial_cmp(&self, other: &Self) -> Option<Ordering> { Some(self.cmp(other)) } }
pub fn handle(request: Request<'_>) -> Reply {
    let mut all = request.text()?.split(' ').map(Version::parse).collect::<Option<Vec<_>>>().ok_or("no version")?;
    all.sort();
    Ok(format!("{all:?}").into())
}

//= roman
//? 1994 MCMXC 4 XLII 3999
const PAIRS: [(u32, &str); 13] = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"),
    (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")];
fn write(mut n: u32) -> String {
    let mut out = String::new();
    for (value, text) in PAIRS { while n >= value { out.push_str(text); n -= value } }
    out
}
fn read(mut text: &str) -> Option<u32> {
    let mut n = 0;
    while !text.is_empty() {
        let (value, part) = PAIRS.iter().find(|(_, p)| text.starts_with(p))?;
        (n, text) = (n + value, &text[part.len()..]);
    }
    Some(n)
}
pub fn handle(request: Request<'_>) -> Reply {
    let one = |w: &str| match w.parse() { Ok(n) => write(n), Err(_) => read(w).map_or("?".into(), |n| n.to_string()) };
    Ok(request.text()?.split(' ').map(one).collect::<Vec<_>>().join(" ").into())
}

//= tokens
//? let x1 = 3.14 * (y + 0xff); // end
#[derive(Debug, Clone, PartialEq)]
enum Token { Word(String), Int(u64), Float(f64), Sign(char), Note(String) }
fn tokens(text: &str) -> Vec<Token> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = |f: fn(char) -> bool| rest.find(|c| !f(c)).unwrap_or(rest.len());
        let (token, taken) = match c {
            c if c.is_whitespace() => { rest = rest.trim_start(); continue }
            '/' if rest.starts_with("//") => { let n = length(|c| c != '\n'); (Token::Note(rest[2..n].trim().into()), n) }
            c if c.is_alphabetic() || c == '_' => { let n = length(|c| c.is_alphanumeric() || c == '_'); (Token::Word(rest[..n].into()), n) }
            '0' if rest.starts_with("0x") => { let n = length(|c| c.is_ascii_hexdigit() || c == 'x'); (Token::Int(u64::from_str_radix(&rest[2..n], 16).unwrap_or(0)), n) }
            '0'..='9' => {
                let n = length(|c| c.is_ascii_digit() || c == '.');
                (rest[..n].parse().map(Token::Int).unwrap_or_else(|_| Token::Float(rest[..n].parse().unwrap_or(0.0))), n)
            }
            c => (Token::Sign(c), c.len_utf8()),
        };
        all.push(token);
        rest = &rest[taken..];
    }
    all
}
pub fn handle(request: Request<'_>) -> Reply { Ok(format!("{:?}", tokens(request.text()?)).into()) }

//= xml
//? <a><b x="1">text</b><c/></a>
//? <a><b></a>
fn walk(text: &str) -> Result<String, Error> {
    let (mut open, mut out, mut rest) = (Vec::new(), String::new(), text);
    while let Some(at) = rest.find('<') {
        if !rest[..at].trim().is_empty() { out += &format!("{}{:?}\n", " ".repeat(open.len()), rest[..at].trim()) }
        let end = rest.find('>').ok_or("an open tag")?;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) { return Err(Error::invalid(format!("</{name}> closes nothing"))) }
            continue;
        }
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |t| (t, true));
        let mut words = tag.split(' ');
        let name = words.next().unwrap_or_default();
        out += &format!("{}{name} {:?}\n", " ".repeat(open.len()), words.collect::<Vec<_>>());
        if !is_empty { open.push(name) }
    }
    if open.is_empty() { Ok(out) } else { Err(Error::invalid(format!("{open:?} stay open"))) }
}
pub fn handle(request: Request<'_>) -> Reply { walk(request.text()?).map(String::into_bytes) }

//= bencode
//? d3:bari-42e4:listl1:a2:bbee
//? i12
#[derive(Debug)]
#[allow(dead_code)]
enum Value<'a> { Int(i64), Bytes(&'a [u8]), List(Vec<Value<'a>>), Map(Vec<(&'a [u8], Value<'a>)>) }
fn value<'a>(b: &mut &'a [u8]) -> Option<Value<'a>> {
    let first = *b.first()?;
    if first.is_ascii_digit() { return bytes(b).map(Value::Bytes) }
    *b = &b[1..];
    match first {
        b'i' => {
            let at = b.iter().position(|c| *c == b'e')?;
            let n = core::str::from_utf8(&b[..at]).ok()?.parse().ok()?;
            *b = &b[at + 1..];
            Some(Value::Int(n))
        }
        b'l' => { let mut all = vec![]; while *b.first()? != b'e' { all.push(value(b)?) } *b = &b[1..]; Some(Value::List(all)) }
        b'd' => { let mut all = vec![]; while *b.first()? != b'e' { all.push((bytes(b)?, value(b)?)) } *b = &b[1..]; Some(Value::Map(all)) }
        _ => None,
    }
}
fn bytes<'a>(b: &mut &'a [u8]) -> Option<&'a [u8]> {
    let at = b.iter().position(|c| *c == b':')?;
    let n: usize = core::str::from_utf8(&b[..at]).ok()?.parse().ok()?;
    let (text, rest) = b[at + 1..].split_at_checked(n)?;
    *b = rest;
    Some(text)
}
pub fn handle(request: Request<'_>) -> Reply {
    Ok(format!("{:?}", value(&mut request.body()).ok_or(Error::invalid("no bencode"))?).into())
}

//= protobuf
//? \x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01
//? \x08\xff
/// The wire format, field by field.
fn varint(b: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let (&first, rest) = b.split_first()?;
        *b = rest;
        n |= u64::from(first & 0x7f) << shift;
        if first < 0x80 { return Some(n) }
    }
    None
}
fn fields(mut b: &[u8], depth: u32, out: &mut String) -> Option<()> {
    while !b.is_empty() {
        let key = varint(&mut b)?;
        let number = key >> 3;
        match key & 7 {
            0 => *out += &format!("{number}:{} ", varint(&mut b)?),
            1 => { let (w, rest) = b.split_first_chunk::<8>()?; b = rest; *out += &format!("{number}:{} ", f64::from_le_bytes(*w)) }
            2 => {
                let n = varint(&mut b)? as usize;
                let (part, rest) = b.split_at_checked(n)?;
                b = rest;
                let mut inner = String::new();
                if depth < 4 && fields(part, depth + 1, &mut inner).is_some() { *out += &format!("{number}:{{ {inner}}} ") }
                else { *out += &format!("{number}:{:?} ", String::from_utf8_lossy(part)) }
            }
            5 => { let (w, rest) = b.split_first_chunk::<4>()?; b = rest; *out += &format!("{number}:{} ", f32::from_le_bytes(*w)) }
            _ => return None,
        }
    }
    Some(())
}
pub fn handle(request: Request<'_>) -> Reply {
    let mut out = String::new();
    fields(request.body(), 0, &mut out).ok_or(Error::new(Code::DataLoss, "cut off"))?;
    Ok(out.into())
}
