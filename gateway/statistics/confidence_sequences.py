"""Boundaries that the estimate of an absent effect crosses, at any time, with probability at most alpha.

Robbins' normal mixture (Annals of Mathematical Statistics 41, 1970): a standardised sum z at time n, whose path is a
Brownian motion's, stays below the boundary where the likelihood ratio of "some effect, normally distributed" to "none",

    M = exp(z² u / 2 (1 + u)) / sqrt(1 + u),    u = rho² n,

reaches 1 / alpha, since M is a martingale (Ville's inequality). With the variance estimated this is the asymptotic
confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and
asymptotic confidence sequences" (Annals of Statistics 52, 2024), and 1 /
M is the always-valid p-value of the mixture sequential ratio test (Johari, Koomen, Pekelis, Walsh: "Always valid
inference", Operations Research 70, 2022).

**Units that come again.** Requests of one unit are not independent, so no variance here comes from requests: it comes
from between the buckets that units fall into (`variance`). Nor does information I(n) then grow as fast as n, since a
unit that comes a hundred times says less than a hundred units do. With a steady mix of units I(n) / n falls, and looks
at two times n < m are *more* alike than the Brownian motion's: their correlation is sqrt(I(n) / I(m)) >= sqrt(n / m).
By Slepian's inequality the more correlated Gaussian path is the less likely to cross a given boundary; both sides
together are crossed with at most the sum of the Brownian motion's two chances. So n may count requests. That needs
means that are about normal and a mix that does not turn; tests/statistics shows by how little they may fail: sessions
with heavy tails, a few users who send everything, rates that grow threefold.
"""

from __future__ import annotations

from math import exp, inf, log, sqrt

# Sequences are tightest at this many requests of the smaller arm: that is where ramps decide (200 requests in a step
# and more). With a tenth as many an interval is wider by a quarter than it is there, in standard errors; with ten times
# as many by a fourteenth.
TIGHTEST_AT = 500
# u at which the boundary for alpha = 0.05 is lowest: the root of u = log(1 + u) + 2 log(1 / alpha). It is used for all
# alphas, so that intervals of different alphas nest and a p-value belongs to them.
_LOWEST_AT = 8.2
RHO2 = _LOWEST_AT / TIGHTEST_AT

_LARGEST_EXPONENT = 700.0


def boundary(n: float, alpha: float) -> float:
    """How many standard errors the estimate is off at the most, to either side, after n requests."""
    u = RHO2 * n
    return sqrt((1 + 1 / u) * (log(1 + u) - 2 * log(alpha))) if u > 0 else inf


def one_sided_boundary(n: float, alpha: float) -> float:
    """The same to one side, which somebody chose beforehand."""
    u = RHO2 * n
    return sqrt((1 + 1 / u) * 2 * log(1 + sqrt(1 + u) / (2 * alpha))) if u > 0 else inf


def p_value(z: float, n: float) -> float:
    """The smallest alpha at whose boundary z is: always valid."""
    u = RHO2 * n
    if u <= 0:
        return 1.0
    return min(1.0, sqrt(1 + u) * exp(-min(z * z * u / (2 * (1 + u)), _LARGEST_EXPONENT)))


def student(z: float, degrees: float) -> float:
    """The quantile of Student's t that belongs to the normal quantile z: for errors that were estimated themselves.

    Wallace, "Bounds on normal approximations to Student's and the chi-square distributions" (1959): within 2 %.
    """
    if degrees <= 0:
        return inf
    exponent = (z * (8 * degrees + 3) / (8 * degrees + 1)) ** 2 / degrees
    return sqrt(degrees * (exp(exponent) - 1)) if exponent < _LARGEST_EXPONENT else inf


def normal(t: float, degrees: float) -> float:
    """The normal quantile that belongs to a quantile of Student's t: the inverse of `student`."""
    if degrees <= 0:
        return 0.0
    return sqrt(degrees * log(1 + t * t / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
