#pragma once

#include <gpipe/layer/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace support {

/// Pictures and the digits that they show.
struct Digits {
    static constexpr std::size_t side = 28;
    static constexpr std::size_t pixels = side * side;

    std::vector<float> images; ///< from 0, the background, to 1
    std::vector<std::int32_t> labels;

    std::size_t size() const { return labels.size(); }
    void add(float const* image, std::int32_t label) {
        images.insert(images.end(), image, image + pixels);
        labels.push_back(label);
    }
    float const* image(std::size_t i) const { return images.data() + i * pixels; }
};

namespace detail {

struct Point {
    double x, y;
};
/// A quadratic curve, from a to c; y runs downwards, the digit fills the unit square.
struct Curve {
    Point a, b, c;
};

inline std::vector<Curve> const& curves_of(std::size_t digit) {
    auto const line = [](Point a, Point c) {
        return Curve{a, {(a.x + c.x) / 2, (a.y + c.y) / 2}, c};
    };
    static std::vector<Curve> const all[] = {
        {{{.5, 0}, {1, 0}, {1, .5}},
         {{1, .5}, {1, 1}, {.5, 1}},
         {{.5, 1}, {0, 1}, {0, .5}},
         {{0, .5}, {0, 0}, {.5, 0}}},
        {line({.55, 0}, {.55, 1}), line({.25, .25}, {.55, 0})},
        {{{.05, .25}, {.1, 0}, {.5, 0}},
         {{.5, 0}, {1, 0}, {.9, .35}},
         {{.9, .35}, {.8, .6}, {0, 1}},
         line({0, 1}, {1, 1})},
        {{{.05, .12}, {.3, -.05}, {.55, 0}},
         {{.55, 0}, {1, .1}, {.85, .3}},
         {{.85, .3}, {.75, .48}, {.4, .48}},
         {{.4, .48}, {1, .5}, {.95, .75}},
         {{.95, .75}, {.85, 1.05}, {.4, 1}},
         {{.4, 1}, {.15, .98}, {0, .85}}},
        {line({.65, 0}, {0, .65}), line({0, .65}, {1, .65}), line({.7, .35}, {.7, 1})},
        {line({.9, 0}, {.15, 0}),
         line({.15, 0}, {.1, .45}),
         {{.1, .45}, {.5, .3}, {.85, .5}},
         {{.85, .5}, {1.1, .75}, {.75, .95}},
         {{.75, .95}, {.4, 1.1}, {0, .88}}},
        {{{.8, .02}, {.2, .1}, {.05, .6}},
         {{.05, .6}, {.05, 1}, {.5, 1}},
         {{.5, 1}, {.95, 1}, {.95, .7}},
         {{.95, .7}, {.9, .42}, {.5, .45}},
         {{.5, .45}, {.1, .48}, {.05, .7}}},
        {line({0, 0}, {1, 0}), {{1, 0}, {.5, .4}, {.35, 1}}, line({.3, .5}, {.8, .5})},
        {{{.5, 0}, {.95, 0}, {.9, .25}},
         {{.9, .25}, {.85, .45}, {.5, .48}},
         {{.5, .48}, {.15, .45}, {.1, .25}},
         {{.1, .25}, {.05, 0}, {.5, 0}},
         {{.5, .48}, {1.05, .5}, {1, .75}},
         {{1, .75}, {.95, 1}, {.5, 1}},
         {{.5, 1}, {.05, 1}, {0, .75}},
         {{0, .75}, {-.05, .5}, {.5, .48}}},
        {{{.9, .3}, {.9, 0}, {.5, 0}},
         {{.5, 0}, {.05, 0}, {.05, .3}},
         {{.05, .3}, {.1, .55}, {.5, .55}},
         {{.5, .55}, {.9, .5}, {.9, .3}},
         {{.9, .3}, {.9, .7}, {.65, 1}}}};
    return all[digit];
}

/// A digit as a hand would draw it: each time of another size, slant, place and thickness, with
/// curves that miss their points a little, on paper with specks.
class Drawing {
  public:
    Drawing(std::size_t digit, gpipe::InitialRandom random) : image_(Digits::pixels) {
        double const height = random.uniform(16, 22), width = random.uniform(9, 17);
        double const slant = random.uniform(-0.35, 0.35), turn = random.uniform(-0.2, 0.2);
        double const x = 13.5 + random.uniform(-3, 3), y = 13.5 + random.uniform(-3, 3);
        double const radius = random.uniform(0.6, 1.7);
        auto const place = [&](Point p) {
            double const v = (p.y - 0.5 + random.normal(0.035)) * height;
            double const u = (p.x - 0.5 + random.normal(0.035)) * width - slant * v;
            return Point{x + u - turn * v, y + v + turn * u};
        };
        // The flag of a 1, the bar of a 7, and other last strokes of few: not everybody has them.
        std::vector<Curve> const& curves = curves_of(digit);
        bool const whole = (digit != 1 && digit != 7) || random.uniform() < 0.5;
        for (std::size_t i = 0; i + (whole ? 0 : 1) < curves.size(); ++i)
            draw({place(curves[i].a), place(curves[i].b), place(curves[i].c)}, radius);
        for (float& pixel : image_) {
            if (random.uniform() < 0.02) pixel = static_cast<float>(random.uniform());
            if (pixel > 0) pixel *= static_cast<float>(random.uniform(0.7, 1));
        }
    }
    float const* data() const { return image_.data(); }

  private:
    void draw(Curve const& curve, double radius) {
        constexpr int steps = 24;
        for (int i = 0; i <= steps; ++i) {
            double const t = double(i) / steps, s = 1 - t;
            dot(s * s * curve.a.x + 2 * s * t * curve.b.x + t * t * curve.c.x,
                s * s * curve.a.y + 2 * s * t * curve.b.y + t * t * curve.c.y, radius);
        }
    }
    void dot(double x, double y, double radius) {
        auto const first = [&](double at) { return std::max(0, int(at - radius)); };
        auto const last = [&](double at) {
            return std::min(int(Digits::side) - 1, int(at + radius + 1));
        };
        for (int row = first(y); row <= last(y); ++row)
            for (int column = first(x); column <= last(x); ++column) {
                double const ink = radius + 0.5 - std::hypot(column - x, row - y);
                float& pixel = image_[std::size_t(row) * Digits::side + std::size_t(column)];
                pixel = std::max(pixel, static_cast<float>(std::clamp(ink, 0.0, 1.0)));
            }
    }

    std::vector<float> image_;
};

} // namespace detail

/// So many digits, drawn at random.
inline Digits drawn_digits(std::size_t count, std::uint64_t seed) {
    Digits result;
    for (std::size_t i = 0; i < count; ++i) {
        gpipe::InitialRandom random(seed, 0, static_cast<std::uint32_t>(i));
        std::uint32_t const digit = random() % 10;
        result.add(detail::Drawing(digit, random).data(), static_cast<std::int32_t>(digit));
    }
    return result;
}

} // namespace support
