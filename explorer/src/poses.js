// Poses of generative capsules: six numbers a of the matrix
// [[1 + a0, a1, a2], [a3, 1 + a4, a5], [0, 0, 1]], in a frame from -1 to 1.

/** The pose that comes from applying pose `b` first, then `a`. */
export function compose(a, b) {
  const [p, q, x, r, s, y] = [1 + a[0], a[1], a[2], a[3], 1 + a[4], a[5]];
  const [k, l, u, m, n, v] = [1 + b[0], b[1], b[2], b[3], 1 + b[4], b[5]];
  return [
    p * k + q * m - 1, p * l + q * n, p * u + q * v + x,
    r * k + s * m, r * l + s * n - 1, r * u + s * v + y,
  ];
}

/** Turns by `angle` (radians, clockwise) and scales about a centre, then moves. */
export function about(centre, { x = 0, y = 0, angle = 0, scale = 1 }) {
  const cos = scale * Math.cos(angle);
  const sin = scale * Math.sin(angle);
  return [
    cos - 1, -sin, centre.x + x - (cos * centre.x - sin * centre.y),
    sin, cos - 1, centre.y + y - (sin * centre.x + cos * centre.y),
  ];
}
