// All that layers of one format are computed by: a model needs most of it, so it is one library.
//
// Header: T (and T4), BITS, GROUP: see matrix.metal.
#include "matrix.metal"
#include "matrix_rows.metal"
#include "gemv.metal"
#include "matrix_tile.metal"
#include "qmm.metal"
#include "unpack.metal"
