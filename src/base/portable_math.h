// exp and log in float64 from +, −, × and ÷ alone. The sampler uses these because libm picks another variant, with
// other last bits, on another processor, and sampled tokens must not depend on the machine that draws them (design.md
// 1).
#pragma once

namespace tandem {

// e^x for x <= 0 within 2 units in the last place; below -708 the result is 0. x must not be NaN.
double portable_exp(double x);

// ln(x) for finite, normal x > 0 within 2 units in the last place.
double portable_log(double x);

}  // namespace tandem
