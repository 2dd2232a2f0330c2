// An attention on Eigen in four dtypes, judged: g++ -std=c++17 -O2 -I/usr/include/eigen3 attention.cpp -o attention
// ./attention VECTORS [ANSWERS [BUG]] takes the vectors of the form "heads"; docs/vectors.md says what is in a file.
#include <Eigen/Core>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

struct Array { std::vector<long> shape; std::vector<double> data; };

struct File {
  std::string about;  // the vector's row of the manifest, in JSON
  std::map<std::string, Array> arrays;
  const Array *find(const std::string &name) const {
    return arrays.count(name) ? &arrays.at(name) : nullptr;
  }
  double number(const std::string &name, double otherwise) const {
    std::smatch found;
    std::regex pair("\"" + name + "\":(-?[0-9][-+.0-9e]*)");
    return std::regex_search(about, found, pair) ? std::stod(found[1]) : otherwise;
  }
  bool has(const std::string &text) const { return about.find(text) != std::string::npos; }
};

template <class Stored> void decode(const char *bytes, std::vector<double> &into) {
  std::vector<Stored> stored(into.size());
  if (!into.empty()) std::memcpy(static_cast<void *>(stored.data()), bytes, into.size() * sizeof(Stored));
  for (size_t i = 0; i < into.size(); i++) into[i] = static_cast<double>(stored[i]);
}

File read(const fs::path &path) {
  std::ifstream stream(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  std::uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  std::string header = bytes.substr(8, length);
  File file;
  // The header is JSON; these files have no spaces in it, and the order dtype, shape, data_offsets.
  std::regex entry(R"re("([\w/.]+)":\{"dtype":"(\w+)","shape":\[([\d,]*)\],"data_offsets":\[(\d+),\d+\]\})re");
  for (std::sregex_iterator it(header.begin(), header.end(), entry), end; it != end; ++it) {
    Array array;
    std::istringstream sizes((*it)[3]);
    for (std::string size; std::getline(sizes, size, ',');) array.shape.push_back(std::stol(size));
    array.data.resize(std::accumulate(array.shape.begin(), array.shape.end(), 1L, std::multiplies<long>()));
    const char *from = bytes.data() + 8 + length + std::stoul((*it)[4]);
    std::string dtype = (*it)[2];
    if (dtype == "F64") decode<double>(from, array.data);
    else if (dtype == "F32") decode<float>(from, array.data);
    else if (dtype == "F16") decode<Eigen::half>(from, array.data);
    else if (dtype == "BF16") decode<Eigen::bfloat16>(from, array.data);
    else if (dtype == "I32") decode<std::int32_t>(from, array.data);
    else decode<std::uint8_t>(from, array.data);  // BOOL
    file.arrays[(*it)[1]] = array;
  }
  file.about = std::regex_replace(header.substr(0, header.find("\"},")), std::regex(R"(\\")"), "\"");
  return file;
}

// Answers in the dtype of the vector, computed in Math.
template <class Stored, class Math> Array attention(const File &file, const std::string &bug) {
  using Matrix = Eigen::Matrix<Math, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Array &q = *file.find("inputs/queries"), &k = *file.find("inputs/keys"), &v = *file.find("inputs/values");
  const Array &mask = *file.find("inputs/mask"), &padding = *file.find("inputs/padding");
  const Array *bias = file.find("inputs/bias");
  const long B = q.shape[0], H = q.shape[1], Lq = q.shape[2], d = q.shape[3], G = k.shape[1];
  const long Lk = mask.shape[3], past = Lk - k.shape[2], dv = v.shape[3];
  const double scale = file.number("call\":\\{\"scale", 0), cap = file.number("softcap", 0);
  auto rows = [&](const Array &fresh, const char *name, long b, long g, long width) {
    Matrix found(Lk, width);
    for (long j = 0; j < Lk; j++) {
      const Array &from = j < past ? *file.find(name) : fresh;
      const long at = ((b * G + g) * (j < past ? past : Lk - past) + (j < past ? j : j - past)) * width;
      for (long c = 0; c < width; c++) found(j, c) = padding.data[b * Lk + j] ? Math(0) : Math(from.data[at + c]);
    }
    return found;
  };
  Array out{{B, H, Lq, dv}, std::vector<double>(B * H * Lq * dv)};
  for (long b = 0; b < B; b++) for (long h = 0; h < H; h++) {
    const long g = bug == "tiled" ? h % G : h / (H / G);  // query head h reads key head h / (H / G)
    Matrix Q(Lq, d), K = rows(k, "inputs/past_keys", b, g, d), V = rows(v, "inputs/past_values", b, g, dv);
    for (long i = 0; i < Lq * d; i++) Q.data()[i] = Math(q.data[(b * H + h) * Lq * d + i]);
    Matrix S = Q * K.transpose() * Math(scale);
    for (long i = 0; i < Lq; i++) {
      Math top = -INFINITY, sum = 0;
      auto open = [&](long j) { return mask.data[((b * H + h) * Lq + i) * Lk + j] != 0; };
      for (long j = 0; j < Lk; j++) {
        if (cap) S(i, j) = Math(cap) * std::tanh(S(i, j) / Math(cap));
        if (bias && open(j)) {
          const long place[4] = {b, h, i, j};
          long at = 0, axis = 4 - long(bias->shape.size());
          for (long size : bias->shape) at = at * size + (size == 1 ? 0 : place[axis]), axis++;
          S(i, j) += Math(bias->data[at]);
        }
        if (open(j)) top = std::isnan(S(i, j)) ? S(i, j) : std::max(top, S(i, j));
      }
      Eigen::Matrix<Math, 1, Eigen::Dynamic> P(Lk);
      for (long j = 0; j < Lk; j++) sum += P(j) = open(j) ? std::exp(S(i, j) - top) : Math(0);
      if (sum != 0) P /= sum;  // a row without a key stays 0
      const Eigen::Matrix<Math, 1, Eigen::Dynamic> row = P * V;
      for (long c = 0; c < dv; c++) out.data[((b * H + h) * Lq + i) * dv + c] = double(Stored(row(c)));
    }
  }
  return out;
}

int main(int count, char **words) {
  const std::string bug = count > 3 ? words[3] : "";
  if (count > 2) fs::create_directory(words[2]);
  int asked = 0, equal = 0;
  const std::regex has_not("\"(rotary|query_key_norm|additive|dropout_keep)\"");
  for (const auto &one : fs::directory_iterator(words[1])) {
    const std::string id = one.path().stem();
    if (id.rfind("heads-", 0) != 0) continue;
    const File file = read(one.path());
    if (std::regex_search(file.about, has_not)) continue;
    const Array out = file.has("\"dtype\":\"float64\"") ? attention<double, double>(file, bug)
        : file.has("\"dtype\":\"float32\"") ? attention<float, float>(file, bug)
        : file.has("\"dtype\":\"float16\"") ? attention<Eigen::half, float>(file, bug)
        : attention<Eigen::bfloat16, float>(file, bug);
    const Array &expected = *file.find("expected/output"), &allowed = *file.find("allowed/output");
    bool right = true;
    for (size_t i = 0; i < out.data.size(); i++) {
      const double x = out.data[i], y = expected.data[i];
      right &= std::isinf(allowed.data[i]) || x == y || (x != x && y != y) || std::abs(x - y) <= allowed.data[i];
    }
    asked++, equal += right;
    if (!right) std::cout << "differs " << id << "\n";
    if (count > 2) {
      std::ostringstream shape;
      for (long size : out.shape) shape << (shape.tellp() ? "," : "") << size;
      const std::string header = "{\"output\":{\"dtype\":\"F64\",\"shape\":[" + shape.str() +
          "],\"data_offsets\":[0," + std::to_string(8 * out.data.size()) + "]}}";
      const std::uint64_t length = header.size();
      std::ofstream stream(fs::path(words[2]) / (id + ".safetensors"), std::ios::binary);
      stream.write(reinterpret_cast<const char *>(&length), 8) << header;
      stream.write(reinterpret_cast<const char *>(out.data.data()), 8 * out.data.size());
    }
  }
  std::cout << equal << " of " << asked << " equal\n";
  return equal == asked ? 0 : 1;
}
