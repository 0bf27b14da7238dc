/* nvidia-smi, as far as an operator and its users call it. */
#include <string.h>

#include "smi.h"

int main(int count, char **words)
{
    count--;
    words++;
    if (count && (strcmp(words[0], "--help") == 0 || strcmp(words[0], "-h") == 0)) {
        puts("NVIDIA System Management Interface -- of the simulated driver\n\n"
             "nvidia-smi of the simulated driver: -L, --query-gpu=..., --query-compute-apps=..., mig, compute-policy,\n"
             "-i ID -c MODE | -pm 0|1 | -mig 0|1, --gpu-reset [-i ID], --help-query-gpu, --version, -f FILE");
        return 0;
    }
    if (count && strcmp(words[0], "--help-query-gpu") == 0)
        return list_fields();
    library_open();
    const char *output = option(count, words, "--filename", "-f");
    if (output && *output && !freopen(output, "w", stdout))
        give_up(2, "Unable to open file: %s", output);
    const char *which = option(count, words, "--id", "-i"), *fields = option(count, words, "--query-gpu", NULL);
    const char *apps = option(count, words, "--query-compute-apps", NULL), *format = option(count, words, "--format", NULL);
    int status;
    if (count && strcmp(words[0], "mig") == 0)
        status = run_mig(count - 1, words + 1);
    else if (count && strcmp(words[0], "compute-policy") == 0)
        status = run_compute_policy(count - 1, words + 1);
    else if (count && words[0][0] != '-')
        give_up(2, "Invalid combination of input arguments: %s", words[0]);
    else if (option(count, words, "--version", NULL))
        status = show_versions();
    else if (fields)
        status = query_gpu(fields, format ? format : "csv", which);
    else if (apps)
        status = query_compute_apps(apps, format ? format : "csv", which);
    else if (option(count, words, "--gpu-reset", "-r"))
        status = reset_cards(which);
    else if (option(count, words, "--compute-mode", "-c") || option(count, words, "--persistence-mode", "-pm") ||
             option(count, words, "--multi-instance-gpu", "-mig"))
        status = set_modes(count, words, which);
    else if (option(count, words, "--list-gpus", "-L"))
        status = list_cards();
    else if (count == 0)
        status = show_table();
    else
        give_up(2, "Invalid combination of input arguments: %s", words[0]);
    nvmlShutdown();
    return status;
}
