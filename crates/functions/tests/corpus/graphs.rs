//! Functions of the corpus about graphs, games and tables of part results.

//= graph_$ALG
//: ALG = breadth | dijkstra | bellman_ford | floyd | kruskal
//: ALG = prim | topological | tarjan | bipartite | flow | pagerank
//? 0-1:4 0-2:1 2-1:2 1-3:5 2-3:8 3-4:3
//? 0-1:1 1-2:1 2-0:1 3-4:2
//? 0-x
type Edge = (usize, usize, i64);
@ALG
fn edge(word: &str) -> Option<Edge> {
    let (ends, weight) = word.split_once(':')?;
    let (a, b) = ends.split_once('-')?;
    Some((a.parse().ok().filter(|n| *n < 64)?, b.parse().ok().filter(|n| *n < 64)?, weight.parse().ok()?))
}
pub fn handle(request: Request<'_>) -> Reply {
    let edges = request.text()?.split(' ').map(edge).collect::<Option<Vec<_>>>().ok_or(Error::invalid("a-b:weight"))?;
    let nodes = edges.iter().map(|(a, b, _)| *a.max(b) + 1).max().unwrap_or(0);
    Ok(answer(&edges, nodes).into_bytes())
}
//+ breadth
use alloc::collections::VecDeque;
fn answer(edges: &[Edge], nodes: usize) -> String {
    let mut next = vec![vec![]; nodes];
    for (a, b, _) in edges { next[*a].push(*b); next[*b].push(*a); }
    let mut far = vec![None; nodes];
    let mut queue = VecDeque::from([0]);
    far[0] = Some(0_u32);
    while let Some(at) = queue.pop_front() {
        for to in &next[at] { if far[*to].is_none() { far[*to] = far[at].map(|d| d + 1); queue.push_back(*to) } }
    }
    format!("{far:?}")
}
//+ dijkstra
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
fn answer(edges: &[Edge], nodes: usize) -> String {
    let mut cost = vec![i64::MAX; nodes];
    let mut heap = BinaryHeap::from([Reverse((0, 0, vec![0]))]);
    let mut ways = vec![vec![]; nodes];
    while let Some(Reverse((c, at, way))) = heap.pop() {
        if c >= cost[at] { continue }
        cost[at] = c;
        for (_, to, w) in edges.iter().filter(|(from, ..)| *from == at) {
            let mut way = way.clone();
            way.push(*to);
            heap.push(Reverse((c + w, *to, way)));
        }
        ways[at] = way;
    }
    format!("{cost:?} {ways:?}")
}
//+ bellman_ford
fn answer(edges: &[Edge], nodes: usize) -> String {
    let mut cost: Vec<Option<i64>> = vec![None; nodes];
    cost[0] = Some(0);
    for _ in 0..nodes {
        for (a, b, w) in edges {
            if let Some(c) = cost[*a] && cost[*b].is_none_or(|old| c + w < old) { cost[*b] = Some(c + w) }
        }
    }
    cost.iter().map(|c| c.map_or("-".into(), |c| c.to_string())).collect::<Vec<_>>().join(",")
}
//+ floyd
fn answer(edges: &[Edge], nodes: usize) -> String {
    const FAR: i64 = i64::MAX / 4;
    let mut d = vec![FAR; nodes * nodes];
    for n in 0..nodes { d[n * nodes + n] = 0 }
    for (a, b, w) in edges { d[a * nodes + b] = *w }
    for k in 0..nodes { for i in 0..nodes { for j in 0..nodes {
        d[i * nodes + j] = d[i * nodes + j].min(d[i * nodes + k] + d[k * nodes + j]);
    } } }
    d.chunks(nodes).map(|row| row.iter().map(|c| if *c >= FAR { ".".into() } else { c.to_string() }).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("\n")
}
//+ kruskal
fn root(parent: &mut [usize], at: usize) -> usize {
    if parent[at] != at { parent[at] = root(parent, parent[at]) }
    parent[at]
}
fn answer(edges: &[Edge], nodes: usize) -> String {
    let mut sorted = edges.to_vec();
    sorted.sort_by_key(|e| e.2);
    let mut parent: Vec<usize> = (0..nodes).collect();
    let kept: Vec<_> = sorted.into_iter().filter(|(a, b, _)| {
        let (a, b) = (root(&mut parent, *a), root(&mut parent, *b));
        parent[a] = b;
        a != b
    }).collect();
    format!("{} {kept:?}", kept.iter().map(|e| e.2).sum::<i64>())
}
//+ prim
use alloc::collections::BTreeSet;
fn answer(edges: &[Edge], nodes: usize) -> String {
    let (mut inside, mut total) = (BTreeSet::from([0_usize]), 0);
    loop {
        let crossing = edges.iter().filter(|(a, b, _)| inside.contains(a) != inside.contains(b));
        let Some((a, b, w)) = crossing.min_by_key(|e| e.2) else { return format!("{total} {}/{nodes}", inside.len()) };
        inside.extend([*a, *b]);
        total += w;
    }
}
//+ topological
fn answer(edges: &[Edge], nodes: usize) -> String {
    let mut into = vec![0; nodes];
    edges.iter().for_each(|(_, b, _)| into[*b] += 1);
    let mut ready: Vec<_> = (0..nodes).filter(|n| into[*n] == 0).collect();
    let mut order = vec![];
    while let Some(at) = ready.pop() {
        order.push(at);
        for (_, b, _) in edges.iter().filter(|e| e.0 == at) { into[*b] -= 1; if into[*b] == 0 { ready.push(*b) } }
    }
    if order.len() == nodes { format!("{order:?}") } else { format!("a circle behind {order:?}") }
}
//+ tarjan
#[derive(Default)]
struct Search { next: Vec<Vec<usize>>, index: Vec<Option<usize>>, low: Vec<usize>, stack: Vec<usize>, count: usize, parts: Vec<Vec<usize>> }
impl Search {
    fn visit(&mut self, at: usize) {
        (self.index[at], self.low[at]) = (Some(self.count), self.count);
        self.count += 1;
        self.stack.push(at);
        for to in self.next[at].clone() {
            match self.index[to] {
                None => { self.visit(to); self.low[at] = self.low[at].min(self.low[to]) }
                Some(index) if self.stack.contains(&to) => self.low[at] = self.low[at].min(index),
                Some(_) => {}
            }
        }
        if Some(self.low[at]) == self.index[at] {
            let begin = self.stack.iter().position(|n| *n == at).unwrap();
            self.parts.push(self.stack.split_off(begin));
        }
    }
}
fn answer(edges: &[Edge], nodes: usize) -> String {
    let mut search = Search { next: vec![vec![]; nodes], index: vec![None; nodes], low: vec![0; nodes], ..Search::default() };
    edges.iter().for_each(|(a, b, _)| search.next[*a].push(*b));
    for n in 0..nodes { if search.index[n].is_none() { search.visit(n) } }
    format!("{:?}", search.parts)
}
//+ bipartite
#[derive(Debug, Clone, Copy, PartialEq)]
enum Side { Left, Right }
impl core::ops::Not for Side { type Output = Self; fn not(self) -> Self { match self { Side::Left => Side::Right, Side::Right => Side::Left } } }
fn answer(edges: &[Edge], nodes: usize) -> String {
    let mut sides: Vec<Option<Side>> = vec![None; nodes];
    for n in 0..nodes {
        let mut todo = if sides[n].is_none() { vec![(n, Side::Left)] } else { vec![] };
        while let Some((at, side)) = todo.pop() {
            match sides[at] {
                Some(old) if old != side => return format!("no: {at}"),
                Some(_) => continue,
                None => sides[at] = Some(side),
            }
            for (a, b, _) in edges { if *a == at { todo.push((*b, !side)) } else if *b == at { todo.push((*a, !side)) } }
        }
    }
    format!("{sides:?}")
}
//+ flow
fn augment(left: &mut Vec<Vec<i64>>, at: usize, goal: usize, most: i64, seen: &mut u64) -> i64 {
    if at == goal { return most }
    *seen |= 1 << at;
    for to in 0..left.len() {
        if left[at][to] > 0 && *seen >> to & 1 == 0 {
            let got = augment(left, to, goal, most.min(left[at][to]), seen);
            if got > 0 { left[at][to] -= got; left[to][at] += got; return got }
        }
    }
    0
}
fn answer(edges: &[Edge], nodes: usize) -> String {
    let mut left = vec![vec![0; nodes]; nodes];
    edges.iter().for_each(|(a, b, w)| left[*a][*b] += w);
    let mut total = 0;
    loop { match augment(&mut left, 0, nodes - 1, i64::MAX, &mut 0) { 0 => return format!("{total}"), more => total += more } }
}
//+ pagerank
fn answer(edges: &[Edge], nodes: usize) -> String {
    let mut rank = vec![1.0 / nodes as f64; nodes];
    for _ in 0..30 {
        let mut next = vec![0.15 / nodes as f64; nodes];
        for (n, r) in rank.iter().enumerate() {
            let out: Vec<_> = edges.iter().filter(|e| e.0 == n).collect();
            for e in &out { next[e.1] += 0.85 * r / out.len() as f64 }
        }
        rank = next;
    }
    rank.iter().map(|r| format!("{r:.6} ")).collect()
}

//= table_$ALG
//: ALG = edit | lcs | knapsack | coins | increasing | partitions
//: ALG = queens | sudoku | hanoi | ackermann | permutations | catalan
//? 6 kitten sitting
//? 3 abcde ace
@ALG
pub fn handle(request: Request<'_>) -> Reply {
    let words: Vec<&str> = request.text()?.split(' ').collect();
    let [n, a, b] = words[..] else { return Err(Error::invalid("three words")) };
    Ok(answer(n.parse().map_err(|_| "a number")?, a.as_bytes(), b.as_bytes()).into_bytes())
}
//+ edit
fn answer(_: usize, a: &[u8], b: &[u8]) -> String {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = core::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let best = (row[j] + 1).min(row[j + 1] + 1).min(corner + usize::from(x != y));
            corner = core::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()].to_string()
}
//+ lcs
fn answer(_: usize, a: &[u8], b: &[u8]) -> String {
    let mut best: Vec<Vec<String>> = vec![vec![String::new(); b.len() + 1]; a.len() + 1];
    for i in 1..=a.len() { for j in 1..=b.len() {
        best[i][j] = if a[i - 1] == b[j - 1] { let mut s = best[i - 1][j - 1].clone(); s.push(a[i - 1].into()); s }
            else if best[i - 1][j].len() >= best[i][j - 1].len() { best[i - 1][j].clone() } else { best[i][j - 1].clone() };
    } }
    best[a.len()][b.len()].clone()
}
//+ knapsack
fn answer(n: usize, a: &[u8], b: &[u8]) -> String {
    let room = n * 100;
    let mut best = vec![0_u32; room + 1];
    for (weight, value) in a.iter().zip(b) {
        for left in (usize::from(*weight)..=room).rev() { best[left] = best[left].max(best[left - usize::from(*weight)] + u32::from(*value)) }
    }
    format!("{} of {room}", best[room])
}
//+ coins
fn answer(n: usize, _: &[u8], b: &[u8]) -> String {
    let goal = n * 37 + b.len();
    let mut ways = vec![0_u64; goal + 1];
    ways[0] = 1;
    for coin in [1, 2, 5, 10, 20, 50] { for sum in coin..=goal { ways[sum] += ways[sum - coin] } }
    ways[goal].to_string()
}
//+ increasing
fn answer(_: usize, a: &[u8], b: &[u8]) -> String {
    let mut ends: Vec<u8> = vec![];
    for x in a.iter().chain(b) {
        let at = ends.partition_point(|e| e < x);
        if at == ends.len() { ends.push(*x) } else { ends[at] = *x }
    }
    String::from_utf8_lossy(&ends).into_owned()
}
//+ partitions
use alloc::collections::BTreeMap;
fn count(n: i64, most: i64, known: &mut BTreeMap<(i64, i64), u64>) -> u64 {
    if n == 0 { return 1 }
    if n < 0 || most == 0 { return 0 }
    if let Some(k) = known.get(&(n, most)) { return *k }
    let k = count(n - most, most, known) + count(n, most - 1, known);
    known.insert((n, most), k);
    k
}
fn answer(n: usize, a: &[u8], _: &[u8]) -> String { let n = (n * a.len()) as i64; count(n, n, &mut BTreeMap::new()).to_string() }
//+ queens
fn place(n: usize, row: usize, columns: u32, up: u32, down: u32) -> u32 {
    if row == n { return 1 }
    let mut free = !(columns | up | down) & ((1 << n) - 1);
    let mut count = 0;
    while free != 0 {
        let bit = free & free.wrapping_neg();
        free ^= bit;
        count += place(n, row + 1, columns | bit, (up | bit) << 1, (down | bit) >> 1);
    }
    count
}
fn answer(n: usize, _: &[u8], _: &[u8]) -> String { (1..=n).map(|n| format!("{} ", place(n, 0, 0, 0, 0))).collect() }
//+ sudoku
fn fits(grid: &[[u8; 4]; 4], row: usize, column: usize, d: u8) -> bool {
    let (r, c) = (row & !1, column & !1);
    (0..4).all(|i| grid[row][i] != d && grid[i][column] != d && grid[r + i / 2][c + i % 2] != d)
}
fn solve(grid: &mut [[u8; 4]; 4], at: usize, count: &mut u32) -> bool {
    *count += 1;
    let Some(at) = (at..16).find(|n| grid[n / 4][n % 4] == 0) else { return true };
    for d in 1..=4 {
        if fits(grid, at / 4, at % 4, d) {
            grid[at / 4][at % 4] = d;
            if solve(grid, at + 1, count) { return true }
            grid[at / 4][at % 4] = 0;
        }
    }
    false
}
fn answer(n: usize, a: &[u8], _: &[u8]) -> String {
    let mut grid = [[0; 4]; 4];
    grid[n % 4][a.len() % 4] = 1;
    grid[(n + 1) % 4][2] = 3;
    let mut count = 0;
    format!("{} {grid:?} {count}", solve(&mut grid, 0, &mut count))
}
//+ hanoi
fn go(n: usize, pegs: &mut [Vec<usize>; 3], from: usize, to: usize, moves: &mut Vec<String>) {
    if n == 0 { return }
    let other = 3 - from - to;
    go(n - 1, pegs, from, other, moves);
    let disc = pegs[from].pop().expect("a disc");
    assert!(pegs[to].last().is_none_or(|top| *top > disc), "on a smaller one");
    pegs[to].push(disc);
    moves.push(format!("{from}{to}"));
    go(n - 1, pegs, other, to, moves);
}
fn answer(n: usize, _: &[u8], _: &[u8]) -> String {
    let (mut pegs, mut moves) = ([(1..=n).rev().collect(), vec![], vec![]], vec![]);
    go(n, &mut pegs, 0, 2, &mut moves);
    moves.join(" ")
}
//+ ackermann
fn ackermann(m: u64, n: u64) -> u64 {
    match (m, n) { (0, n) => n + 1, (m, 0) => ackermann(m - 1, 1), (m, n) => ackermann(m - 1, ackermann(m, n - 1)) }
}
fn answer(n: usize, _: &[u8], _: &[u8]) -> String { format!("{} {}", ackermann(2, n as u64), ackermann(3, n as u64 % 4)) }
//+ permutations
struct Permutations { items: Vec<u8>, first: bool }
impl Iterator for Permutations {
    type Item = String;
    fn next(&mut self) -> Option<String> {
        if !core::mem::take(&mut self.first) {
            let i = self.items.windows(2).rposition(|w| w[0] < w[1])?;
            let j = self.items.iter().rposition(|x| *x > self.items[i])?;
            self.items.swap(i, j);
            self.items[i + 1..].reverse();
        }
        Some(String::from_utf8_lossy(&self.items).into_owned())
    }
}
fn answer(n: usize, a: &[u8], _: &[u8]) -> String {
    let mut items = a[..a.len().min(5)].to_vec();
    items.sort();
    let all = Permutations { items, first: true };
    all.step_by(n).take(9).collect::<Vec<_>>().join(" ")
}
//+ catalan
fn words(open: usize, close: usize, word: &mut String, all: &mut Vec<String>) {
    if open == 0 && close == 0 { all.push(word.clone()) }
    if open > 0 { word.push('('); words(open - 1, close + 1, word, all); word.pop(); }
    if close > 0 { word.push(')'); words(open, close - 1, word, all); word.pop(); }
}
fn answer(n: usize, _: &[u8], _: &[u8]) -> String {
    let mut all = vec![];
    words(n.min(5), 0, &mut String::new(), &mut all);
    format!("{} {}", all.len(), all[..all.len().min(20)].join(","))
}
