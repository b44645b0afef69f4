//! Frames and what is seen in them.
//!
//! A frame is NV12, as cameras give it: a byte of luma for each pixel, row by row, and then for each four
//! pixels the blue and the red difference side by side. The test picture has eight bars of colours, a white
//! square that moves, and at the bottom the number of the frame: 32 fields, the lowest bit to the right,
//! white for 1.

use crate::Area;

pub const WIDTH: usize = 3840;
pub const HEIGHT: usize = 2160;
pub const BYTES: usize = WIDTH * HEIGHT * 3 / 2;

/// The small picture has one pixel for so many in a row, and so many rows: a word of eight bytes.
pub const SCALE: usize = 8;
pub const SMALL_WIDTH: usize = WIDTH / SCALE;
pub const SMALL_HEIGHT: usize = HEIGHT / SCALE;

/// The side of the square, and how far it moves with each frame.
pub const SQUARE: usize = 320;
const STEP: usize = 16;

/// Rows of the number.
const NUMBER_HEIGHT: usize = 64;
const FIELD: usize = WIDTH / 32;
/// Where it begins.
const NUMBER_TOP: usize = HEIGHT - NUMBER_HEIGHT;

const WHITE: u8 = 235;
const BLACK: u8 = 16;
/// No colour.
const GREY: u8 = 128;

/// Luma, blue and red difference of white, yellow, cyan, green, magenta, red, blue, black at three quarters.
const BARS: [[u8; 3]; 8] = [
    [180, 128, 128],
    [162, 44, 142],
    [131, 156, 44],
    [112, 72, 58],
    [84, 184, 198],
    [65, 100, 212],
    [35, 212, 114],
    [16, 128, 128],
];

/// Left and top of the square in the frame of this number: it goes to and fro.
pub fn square(number: u64) -> (usize, usize) {
    let to_and_fro = |most: usize| {
        let steps = (number % (2 * (most / STEP) as u64)) as usize;
        steps.min(2 * (most / STEP) - steps) * STEP
    };
    (to_and_fro(WIDTH - SQUARE), to_and_fro(NUMBER_TOP - SQUARE))
}

/// Draws the frame of this number over what is there: nothing, or the frame of another number, in which only
/// what has moved is drawn again.
pub fn draw(pixels: &mut [u8], before: Option<u64>, number: u64) {
    let (luma, colour) = pixels.split_at_mut(WIDTH * HEIGHT);
    let mut bars = [vec![0; WIDTH], vec![0; WIDTH]];
    for x in 0..WIDTH {
        let [y, u, v] = BARS[x * BARS.len() / WIDTH];
        bars[0][x] = y;
        bars[1][x] = if x.is_multiple_of(2) { u } else { v };
    }
    let grey = [vec![WHITE; SQUARE], vec![GREY; SQUARE]];
    let mut put = |(left, top): (usize, usize), height: usize, rows: [&[u8]; 2]| {
        for (plane, row, top, height) in
            [(&mut *luma, rows[0], top, height), (&mut *colour, rows[1], top / 2, height / 2)]
        {
            for at in top..top + height {
                let at = at * WIDTH + left;
                plane[at..at + row.len()].copy_from_slice(row);
            }
        }
    };
    match before {
        None => put((0, 0), HEIGHT, [&bars[0], &bars[1]]),
        Some(before) => {
            let at = square(before);
            put(at, SQUARE, [&bars[0][at.0..at.0 + SQUARE], &bars[1][at.0..at.0 + SQUARE]]);
        }
    }
    put(square(number), SQUARE, [&grey[0], &grey[1]]);
    let bit = |x: usize| number >> (31 - x / FIELD) & 1 == 1;
    let fields: Vec<u8> = (0..WIDTH).map(|x| if bit(x) { WHITE } else { BLACK }).collect();
    put((0, NUMBER_TOP), NUMBER_HEIGHT, [&fields, &vec![GREY; WIDTH]]);
}

/// The small picture of a frame whose words are these: three bytes for each pixel, the luma that of eight.
pub fn shrink(word: impl Fn(usize) -> u64) -> Vec<u8> {
    let mut small = Vec::with_capacity(SMALL_WIDTH * SMALL_HEIGHT * 3);
    for row in 0..SMALL_HEIGHT {
        let luma = (row * SCALE + SCALE / 2) * SMALL_WIDTH;
        let colour = (HEIGHT + row * SCALE / 2 + SCALE / 4) * SMALL_WIDTH;
        for column in 0..SMALL_WIDTH {
            let sum: u32 = word(luma + column).to_ne_bytes().map(u32::from).iter().sum();
            let [u, v, ..] = word(colour + column).to_ne_bytes();
            small.extend([(sum / 8) as u8, u, v]);
        }
    }
    small
}

/// Mean of the luma.
pub fn brightness(small: &[u8]) -> f64 {
    let sum: u64 = small.iter().step_by(3).map(|&luma| u64::from(luma)).sum();
    sum as f64 / (SMALL_WIDTH * SMALL_HEIGHT) as f64
}

/// What differs from the picture before; the number does not count.
pub fn motion(before: &[u8], now: &[u8]) -> Option<Area> {
    let [mut left, mut top, mut right, mut bottom] = [SMALL_WIDTH, SMALL_HEIGHT, 0, 0];
    let rows = before.chunks_exact(SMALL_WIDTH * 3).zip(now.chunks_exact(SMALL_WIDTH * 3));
    for (y, (before, now)) in rows.take(NUMBER_TOP / SCALE).enumerate() {
        for (x, (before, now)) in before.chunks_exact(3).zip(now.chunks_exact(3)).enumerate() {
            if before[0].abs_diff(now[0]) > 20 {
                (left, right) = (left.min(x), right.max(x + 1));
                (top, bottom) = (top.min(y), y + 1);
            }
        }
    }
    let [left, top, right, bottom] = [left, top, right, bottom].map(|at| at as u32);
    (right > left).then(|| Area { left, top, width: right - left, height: bottom - top })
}

/// The number at the bottom of a small picture, by the luma of its pixels.
pub fn number(luma: impl Fn(usize, usize) -> u8) -> u64 {
    let y = (NUMBER_TOP + NUMBER_HEIGHT / 2) / SCALE;
    (0..32).fold(0, |number, field| {
        let white = luma((field * FIELD + FIELD / 2) / SCALE, y) > GREY;
        number << 1 | u64::from(white)
    })
}

/// The small picture as a BMP file, with a frame around what moves.
pub fn bmp(small: &[u8], motion: Option<&Area>) -> Vec<u8> {
    const HEAD: u32 = 54;
    let len = (SMALL_WIDTH * SMALL_HEIGHT * 3) as u32;
    let mut file = b"BM".to_vec();
    let [width, height] = [SMALL_WIDTH, SMALL_HEIGHT].map(|side| side as u32);
    // Rows from the top: a negative height. One plane of 24 bits, not compressed.
    let head =
        [HEAD + len, 0, HEAD, 40, width, height.wrapping_neg(), 1 | 24 << 16, 0, len, 0, 0, 0, 0];
    file.extend(head.iter().flat_map(|word: &u32| word.to_le_bytes()));
    for (at, pixel) in small.chunks_exact(3).enumerate() {
        let (x, y) = ((at % SMALL_WIDTH) as i64, (at / SMALL_WIDTH) as i64);
        file.extend(match motion.is_some_and(|area| is_around(area, x, y)) {
            true => [0, 140, 255],
            false => bgr([pixel[0], pixel[1], pixel[2]]),
        });
    }
    file
}

/// Whether it is among the two pixels around this area.
fn is_around(area: &Area, x: i64, y: i64) -> bool {
    let inside = |more: i64| {
        let [left, top] = [area.left, area.top].map(|at| i64::from(at) - more);
        let right = i64::from(area.left) + i64::from(area.width) + more;
        let bottom = i64::from(area.top) + i64::from(area.height) + more;
        (left..right).contains(&x) && (top..bottom).contains(&y)
    };
    inside(2) && !inside(0)
}

/// Of BT.601, as cameras have it.
fn bgr([y, u, v]: [u8; 3]) -> [u8; 3] {
    let y = 298 * (i32::from(y) - 16);
    let [u, v] = [u, v].map(|difference| i32::from(difference) - 128);
    [y + 516 * u, y - 100 * u - 208 * v, y + 409 * v]
        .map(|colour| ((colour + 128) >> 8).clamp(0, 255) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(frame: &[u8]) -> Vec<u8> {
        shrink(|at| u64::from_ne_bytes(frame[at * 8..at * 8 + 8].try_into().unwrap()))
    }

    #[test]
    fn a_frame_drawn_over_another_is_as_one_drawn_alone() {
        let mut over = vec![0; BYTES];
        draw(&mut over, None, 10);
        for (before, number) in [(10, 11), (11, 110), (110, 500)] {
            draw(&mut over, Some(before), number);
            let mut alone = vec![0; BYTES];
            draw(&mut alone, None, number);
            assert!(over == alone, "{number}");
            let small = small(&over);
            assert_eq!(super::number(|x, y| small[(y * SMALL_WIDTH + x) * 3]), number);
        }
    }

    #[test]
    fn motion_is_where_the_square_was_and_is() {
        let frame = |number| {
            let mut pixels = vec![0; BYTES];
            draw(&mut pixels, None, number);
            small(&pixels)
        };
        let (before, now) = (frame(40), frame(42));
        assert_eq!(motion(&now, &now), None);
        let ((left, top), (right, bottom)) = (square(40), square(42));
        let area = Area {
            left: (left / SCALE) as u32,
            top: (top / SCALE) as u32,
            width: ((right - left + SQUARE) / SCALE) as u32,
            height: ((bottom - top + SQUARE) / SCALE) as u32,
        };
        assert_eq!(motion(&before, &now), Some(area));
    }

    #[test]
    fn colours_are_those_of_the_bars() {
        let shown = |bar: usize| bgr(BARS[bar]);
        let near = |bar: usize, [b, g, r]: [u8; 3]| {
            let of = shown(bar);
            assert!(of.iter().zip([b, g, r]).all(|(a, b)| a.abs_diff(b) < 6), "{bar}: {of:?}");
        };
        near(0, [191, 191, 191]);
        near(3, [0, 191, 0]);
        near(5, [0, 0, 191]);
        near(6, [191, 0, 0]);
    }
}
