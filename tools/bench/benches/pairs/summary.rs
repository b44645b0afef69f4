//! What pairs of measurements come to.

/// Median, and the 95 % interval of it by order statistics, which six values or more have.
pub(crate) fn summary(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let n = values.len() as f64;
    let half = 0.98 * n.sqrt();
    let low = (n / 2.0 - half).floor().max(0.0) as usize;
    let high = ((n / 2.0 + half).ceil() as usize).min(values.len() - 1);
    [values[values.len() / 2], values[low], values[high]]
}
