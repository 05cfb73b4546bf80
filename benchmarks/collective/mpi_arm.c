// One rank of the Open MPI arm of benchmarks/run collective, which compiles and starts it:
// mpi_arm BYTES REPEATS. The first rank prints the median seconds of an all-reduce of so many bytes
// of float32, each by the slowest rank, and processor seconds of all ranks for one.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int Compare(const void* a, const void* b) {
  const double left = *(const double*)a, right = *(const double*)b;
  return (left > right) - (left < right);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int count = atoi(argv[1]) / 4, repeats = atoi(argv[2]);
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  float* const values = malloc((size_t)count * sizeof(float));
  double* const seconds = malloc((size_t)repeats * sizeof(double));
  clock_t began = 0;
  // The first round is not counted: memory is touched in it.
  for (int round = -1; round < repeats; ++round) {
    if (round == 0) began = clock();
    for (int i = 0; i < count; ++i) values[i] = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    const double before = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double took = MPI_Wtime() - before;
    if (count > 0 && values[count / 2] != (float)size) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (round >= 0) seconds[round] = took;
  }
  double cpu = (double)(clock() - began) / CLOCKS_PER_SEC / repeats;
  MPI_Allreduce(MPI_IN_PLACE, &cpu, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  qsort(seconds, (size_t)repeats, sizeof(double), Compare);
  if (rank == 0)
    printf("{\"seconds\": %.9f, \"cpu_seconds\": %.9f}\n", seconds[repeats / 2], cpu);
  MPI_Finalize();
  return 0;
}
