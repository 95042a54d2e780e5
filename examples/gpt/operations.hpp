#pragma once

namespace gpt {

// What the layers are made of, so that each of them is written once. `Operations::on(ctx)` gives an
// object with
//
//   multiply(extents, a, b, c, stride, add, scale)   a product; see product.hpp and blas.hpp
//   factors<T>(weights...)                           the same weights as elements of type T
//   for_each_index(count, each)                      each(i)
//   map(n, to, f, from...)                           to[i] = f(i, from[i]...) for i < n
//   for_each_row(rows, length, row)                  row(team, r); `length` elements take part in
//                                                    a row, about
//   sum_columns(rows, columns, to, add, f, from...)  to[i] = the sum of f(r, from[r, i]...)
//   scatter_add(rows, vocabulary, width, indices, from, to)
//                                                    to[indices[r]] += from[r], rows of `width`
//   attend, attend_backward                          what heads do with queries, keys and values
//   check(count, f)                                  f(i), which may throw, where it can be seen
//
// and Operations::Handles are the libraries' handles that they need, HandlesFor<T, weights> those
// of a layer whose products have so many weights as factors. Numbers are kept as T and calculated
// with as Real<T> (math.hpp), which f is given and gives. The functors are called in kernels, too,
// so they are GPIPE_HOST_DEVICE, hold values and pointers, and call what kernels can. Several
// threads may share a row. They do so through their team:
//
//   map(n, to, f, from...)         to[i] = f(i, from[i]...) for i < n
//   map_both(n, a, b, f, from...)  a[i] and b[i] are the Two that f(i, from[i]...) is
//   sum(n, f, from...)             the sum of f(i, from[i]...), in a fixed order, for all of them
//   most(values, n)                the greatest, for all of them
//   hold<most>(n, from)            the elements i < n, at most so many, for several uses of them:
//                                  change(f), sum(), most(), write(columns, to), zeros behind n
//   each(n, f)                     f(i) for i < n
//   once(f)                        f(), by one of them
//   alone                          whether it is one thread
//
// All but each() give the same i to the same thread, and who has a sum or the greatest knows that
// all have read for it. What another thread wrote is not to be read.

/// On the host, in host_operations.hpp.
struct HostOperations;
// On GPUs, in cuda_operations.cuh: CudaOperationsIn<precision>.

} // namespace gpt
