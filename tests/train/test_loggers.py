"""Loggers of a run that goes on."""

from bakeoff.train.loggers import keep_rows
from lightning.pytorch.loggers import CSVLogger


def test_rows_of_before_stay_beside_the_file_that_a_csv_logger_begins_anew(tmp_path):
    for step, loss in ((1, 0.5), (2, 0.25)):
        logger = CSVLogger(str(tmp_path), name="comparison", version="trial")
        keep_rows([logger], step - 1)
        logger.log_metrics({"loss": loss}, step)
        logger.save()
    folder = tmp_path / "comparison" / "trial"
    assert (folder / "metrics-to-step-1.csv").read_text().splitlines()[1].split(",") == ["0.5", "1"]
    assert (folder / "metrics.csv").read_text().splitlines()[1].split(",") == ["0.25", "2"]
