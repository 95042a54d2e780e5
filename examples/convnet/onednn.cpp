#include "convnet/onednn.hpp"

#include "gpt/blas.hpp"

#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include <dnnl.hpp>

namespace convnet {

namespace detail {

// One part of a convolution for one number of samples, as oneDNN has it. It takes copies of the
// tensors in layouts of oneDNN's own, for which the kernels are several times as fast, where the
// workspace has room for them, else the tensors as they are. Which, depends on nothing but that:
// the same call gives the same bits on any thread.
class OneDnnConvolution {
  public:
    // Without a workspace it only says whether so many bytes are enough. Throws
    // std::runtime_error.
    OneDnnConvolution(ConvolutionShape const& shape, std::size_t samples, ConvolutionPart part,
                      std::byte* workspace, std::size_t bytes)
        : shape_(shape), samples_(samples), part_(part), engine_(dnnl::engine::kind::cpu, 0),
          stream_(engine_), workspace_(workspace), bytes_(bytes) {
        gpt::use_calling_thread_alone(); // kernels are made for a number of threads
        try {
            if (!make(true) && !make(false))
                throw std::runtime_error(describe(part, shape, samples) + " needs a workspace of " +
                                         std::to_string(used_) + " bytes, but its bound is " +
                                         std::to_string(bytes_));
        } catch (dnnl::error const& error) {
            throw std::runtime_error("oneDNN refuses " + describe(part, shape, samples) + ": " +
                                     error.what());
        }
    }

    bool is(ConvolutionShape const& shape, std::size_t samples, ConvolutionPart part) const {
        return part == part_ && samples == samples_ && shape == shape_;
    }
    // Reads a and b; writes the result, or adds to it if it is the gradient of the weights.
    void operator()(float const* a, float const* b, float* result) {
        gpt::use_calling_thread_alone();
        read_[0].given.set_data_handle(const_cast<float*>(a));
        read_[1].given.set_data_handle(const_cast<float*>(b));
        written_.given.set_data_handle(result);
        for (Tensor& tensor : read_) tensor.copy(stream_);
        kernel_.execute(stream_, arguments_);
        written_.copy(stream_);
        stream_.wait();
    }

  private:
    using Desc = dnnl::memory::desc;
    using Arguments = std::unordered_map<int, dnnl::memory>;

    // As the layer has it, and as the kernel takes it: the same, or copied.
    struct Tensor {
        dnnl::memory given;
        dnnl::primitive reorder;
        Arguments arguments;

        void copy(dnnl::stream const& stream) {
            if (reorder) reorder.execute(stream, arguments);
        }
    };

    // False if there is too little room.
    bool make(bool own_layouts) {
        using Tag = dnnl::memory::format_tag;
        used_ = 0;
        arguments_.clear();
        auto const size = [](std::size_t n) { return static_cast<dnnl::memory::dim>(n); };
        auto const [channels, side, outputs, kernel, stride] = shape_;
        dnnl::memory::dims const strides(2, size(stride)), padding(2, size(shape_.padding()));
        dnnl::memory::dims const in{size(samples_), size(channels), size(side), size(side)};
        dnnl::memory::dims const weights{size(outputs), size(channels), size(kernel), size(kernel)};
        dnnl::memory::dims const out{size(samples_), size(outputs), size(shape_.result()),
                                     size(shape_.result())};
        auto const desc = [](dnnl::memory::dims const& dims, Tag tag) {
            return Desc(dims, dnnl::memory::data_type::f32, tag);
        };
        Desc const x = desc(in, Tag::nchw), w = desc(weights, Tag::oihw), y = desc(out, Tag::nchw);
        auto const wanted = [&](dnnl::memory::dims const& dims, Desc const& given) {
            return own_layouts ? desc(dims, Tag::any) : given;
        };
        Desc const any_x = wanted(in, x), any_w = wanted(weights, w), any_y = wanted(out, y);
        auto const algorithm = dnnl::algorithm::convolution_direct;
        dnnl::convolution_forward::primitive_desc const forward({dnnl::prop_kind::forward_training,
                                                                 algorithm, any_x, any_w, any_y,
                                                                 strides, padding, padding},
                                                                scratch_in_workspace(), engine_);
        if (part_ == ConvolutionPart::forward) {
            read(0, DNNL_ARG_SRC, x, forward.src_desc());
            read(1, DNNL_ARG_WEIGHTS, w, forward.weights_desc());
            write(DNNL_ARG_DST, y, forward.dst_desc());
            use<dnnl::convolution_forward>(forward);
        } else if (part_ == ConvolutionPart::input_gradient) {
            dnnl::convolution_backward_data::primitive_desc const backward(
                {algorithm, any_x, any_w, any_y, strides, padding, padding}, scratch_in_workspace(),
                engine_, forward);
            read(0, DNNL_ARG_WEIGHTS, w, backward.weights_desc());
            read(1, DNNL_ARG_DIFF_DST, y, backward.diff_dst_desc());
            write(DNNL_ARG_DIFF_SRC, x, backward.diff_src_desc());
            use<dnnl::convolution_backward_data>(backward);
        } else {
            dnnl::convolution_backward_weights::primitive_desc const backward(
                {algorithm, any_x, any_w, any_y, strides, padding, padding}, scratch_in_workspace(),
                engine_, forward);
            read(0, DNNL_ARG_SRC, x, backward.src_desc());
            read(1, DNNL_ARG_DIFF_DST, y, backward.diff_dst_desc());
            write(DNNL_ARG_DIFF_WEIGHTS, w, backward.diff_weights_desc());
            use<dnnl::convolution_backward_weights>(backward);
        }
        return used_ <= bytes_;
    }

    // Else oneDNN has one of its own for each thread, and a primitive made on one thread could not
    // run on another.
    static dnnl::primitive_attr scratch_in_workspace() {
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        return attributes;
    }
    dnnl::memory room(Desc const& desc) {
        constexpr std::size_t line = 64;
        std::size_t const begin = used_;
        used_ += (desc.get_size() + line - 1) / line * line;
        bool const fits = workspace_ && used_ <= bytes_;
        return {desc, engine_, fits ? workspace_ + begin : nullptr};
    }
    void read(std::size_t i, int argument, Desc const& given, Desc const& wanted) {
        Tensor& tensor = read_[i];
        tensor = {dnnl::memory(given, engine_, nullptr), {}, {}};
        arguments_[argument] = tensor.given;
        if (given != wanted)
            copy_between(tensor, tensor.given, arguments_[argument] = room(wanted),
                         scratch_in_workspace());
    }
    void write(int argument, Desc const& given, Desc const& wanted) {
        bool const adds = part_ == ConvolutionPart::weight_gradient;
        written_ = {dnnl::memory(given, engine_, nullptr), {}, {}};
        arguments_[argument] = written_.given;
        if (given == wanted && !adds) return;
        dnnl::primitive_attr attributes = scratch_in_workspace();
        dnnl::post_ops sum;
        sum.append_sum(1);
        if (adds) attributes.set_post_ops(sum);
        copy_between(written_, arguments_[argument] = room(wanted), written_.given, attributes);
    }
    void copy_between(Tensor& tensor, dnnl::memory const& from, dnnl::memory const& to,
                      dnnl::primitive_attr const& attributes) {
        dnnl::reorder::primitive_desc const desc(engine_, from.get_desc(), engine_, to.get_desc(),
                                                 attributes);
        tensor.reorder = dnnl::reorder(desc);
        tensor.arguments = {{DNNL_ARG_FROM, from},
                            {DNNL_ARG_TO, to},
                            {DNNL_ARG_SCRATCHPAD, room(desc.scratchpad_desc())}};
    }
    template <class Primitive, class PrimitiveDesc> void use(PrimitiveDesc const& desc) {
        arguments_[DNNL_ARG_SCRATCHPAD] = room(desc.scratchpad_desc());
        kernel_ = Primitive(desc);
    }

    ConvolutionShape shape_;
    std::size_t samples_;
    ConvolutionPart part_;
    dnnl::engine engine_;
    dnnl::stream stream_;
    std::byte* workspace_;
    std::size_t bytes_, used_ = 0;
    dnnl::primitive kernel_;
    Tensor read_[2], written_;
    Arguments arguments_;
};

} // namespace detail

OneDnn::OneDnn(std::byte* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
OneDnn::~OneDnn() = default;

void OneDnn::run(ConvolutionShape const& shape, std::size_t samples, ConvolutionPart part,
                 float const* a, float const* b, float* result) {
    for (auto const& each : made_)
        if (each->is(shape, samples, part)) return (*each)(a, b, result);
    made_.push_back(
        std::make_unique<detail::OneDnnConvolution>(shape, samples, part, memory_, bytes_));
    (*made_.back())(a, b, result);
}

void OneDnnWorkspaceCheck::operator()(ConvolutionShape const& shape, std::size_t samples,
                                      std::size_t bound) const {
    for (auto const part : every_part)
        detail::OneDnnConvolution(shape, samples, part, nullptr, bound);
}

} // namespace convnet
