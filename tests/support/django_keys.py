"""Saves objects with keys of ``idalloc.ext.django``; arguments: server, setting of a database."""

import json
import sys
from typing import Any

import django
import pytest
from django.apps import AppConfig
from django.conf import settings
from django.contrib.admin import AdminSite, ModelAdmin
from django.core import serializers
from django.db import OperationalError, connection, models, transaction
from django.db.migrations import Migration
from django.db.migrations.operations import AlterField, CreateModel
from django.db.migrations.state import ProjectState
from django.test.utils import CaptureQueriesContext

SERVER, DATABASE = sys.argv[1:]


Shop = type("Shop", (AppConfig,), {"name": "__main__", "label": "shop", "path": "."})

settings.configure(
    IDALLOC={"server": SERVER, "sequence": "shop.{table}", "timeout": 3},
    DEFAULT_AUTO_FIELD="idalloc.ext.django.IdallocBigAutoField",
    DATABASES={"default": json.loads(DATABASE)},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.admin", "__main__.Shop"],
)
django.setup()

import idalloc  # noqa: E402 - needs the settings
from idalloc.ext.django import IdallocAutoField, IdallocBigAutoField, KeyConflict  # noqa: E402 - needs the settings


class Order(models.Model):
    customer = models.TextField()


class Late(models.Model):
    pass


def save_in_each_way() -> None:
    assert isinstance(Order._meta.pk, IdallocBigAutoField)
    Order(id=41, customer="old").save()
    order = Order(customer="first")
    order.save()
    with CaptureQueriesContext(connection) as captured:
        assert (order.pk, Order.objects.create(customer="second").pk) == (42, 43)
    assert [each["sql"][:6] for each in captured.captured_queries] == ["INSERT"]
    several = [Order(customer=f"{n}") for n in range(3000)]
    Order.objects.bulk_create([*several, Order(id=10_000, customer="own")])
    assert sorted(each.pk for each in several) == [*range(44, 3044)]
    with transaction.atomic():
        Order.objects.create(customer="lost")
        transaction.set_rollback(True)
    admin: Any = ModelAdmin(Order, AdminSite())
    form = admin.get_form(None)({"customer": "of a form"})
    admin.save_model(None, form.save(commit=False), form, change=False)
    text = '[{"model": "shop.order", "fields": {"customer": "a"}}, {"model": "shop.order", "pk": 7, "fields": {}}]'
    for each in serializers.deserialize("json", text):
        each.save()
    assert {*Order.objects.values_list("pk", flat=True)} == {7, 10_000, *range(41, 3047)} - {3044}


def migrate_from_an_auto_field() -> None:
    fields = [("id", models.AutoField(primary_key=True)), ("customer", models.TextField())]
    state = ProjectState()
    change = AlterField("old", "id", IdallocAutoField(primary_key=True))
    for number, operation in enumerate((CreateModel("Old", fields), change), 1):
        migration = Migration("one", "shop")
        migration.operations = [operation]
        with connection.schema_editor() as editor:
            state = migration.apply(state, editor)
        old: Any = state.apps.get_model("shop", "Old")
        old.objects.bulk_create([old(customer=f"{n}") for n in range(5)])
        assert [*old.objects.order_by("pk").values_list("pk", flat=True)] == [*range(1, 5 * number + 1)]


def wait_for_no_lock_of_its_own() -> None:
    with pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
        connection.cursor().execute("ALTER TABLE shop_late ADD COLUMN n INTEGER")
        Late.objects.create()


def compare_with_the_rows() -> None:
    with idalloc.Client(SERVER) as client:
        client.allocate_range("shop.shop_late")
    Late(id=500).save()
    with pytest.raises(KeyConflict, match=r"sequences advance shop\.shop_late --past 500"):
        Late().save()


with connection.schema_editor() as editor:
    for model in (Order, Late):
        editor.create_model(model)
save_in_each_way()
migrate_from_an_auto_field()
if connection.vendor == "postgresql":
    wait_for_no_lock_of_its_own()
compare_with_the_rows()
connection.close()
